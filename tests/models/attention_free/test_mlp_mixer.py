"""MLP-Mixer: two layers along the sequence."""

import pytest
import torch

from lra_bench.contracts import UserError
from tests.support.mixer_cases import WIDTH, make, rows, run


def test_permuting_channels_permutes_outputs():
    mixer, x = make("mlp_mixer"), rows(2, 40)
    order = torch.randperm(WIDTH, generator=torch.Generator().manual_seed(0))
    assert (run(mixer, x)[..., order] - run(mixer, x[..., order])).abs().max() < 1e-12


def test_equals_convolutions_of_kernel_size_one():
    mixer, x = make("mlp_mixer", max_length=40), rows(2, 40)
    hidden = torch.nn.functional.conv1d(x, mixer.before[..., None], mixer.before_bias)
    expected = torch.nn.functional.conv1d(torch.nn.functional.gelu(hidden), mixer.after[..., None], mixer.after_bias)
    assert (run(mixer, x) - expected).abs().max() < 1e-12


def test_shorter_sequences_use_the_first_weights():
    mixer, short = make("mlp_mixer", max_length=40), make("mlp_mixer", max_length=25)
    with torch.no_grad():
        short.load_state_dict(
            {
                **mixer.state_dict(),
                "before": mixer.before[:, :25],
                "after": mixer.after[:25],
                "after_bias": mixer.after_bias[:25],
            }
        )
    x = rows(2, 25)
    assert (run(mixer, x) - run(short, x)).abs().max() < 1e-12


def test_hidden_must_be_positive():
    with pytest.raises(UserError, match=r"model\.mixer\.hidden=0"):
        make("mlp_mixer", hidden=0)
