"""Collaborative heads: the special case of separate channels, the content term and parameter counts."""

import pytest
import torch

from lra_bench.contracts import UserError
from lra_bench.models.heads.collaborative import CollaborativeHeads
from tests.support.mixer_cases import HEADS, WIDTH, make, rows, run
from tests.support.model_cases import model, task


def concatenated(mixer):
    """Return the mixer with each head on separate channels."""
    mixer.mixing.data = torch.eye(HEADS, dtype=torch.float64).repeat_interleave(WIDTH // HEADS, 1)
    return mixer


@pytest.mark.parametrize("causal", [False, True])
def test_heads_on_separate_channels_equal_attention(causal):
    """w · x replaces the bias of the queries; that of the keys adds the same number to all scores of a query."""
    full, x = make("transformer", causal=causal), rows(2, 50)
    mixer = concatenated(make("collaborative", causal=causal, shared_width=WIDTH))
    state = {key: value for key, value in full.state_dict().items() if key in mixer.state_dict()}
    mixer.load_state_dict({**mixer.state_dict(), **state})
    keys = full.key.weight.data.unflatten(0, (HEADS, -1))
    mixer.content.weight.data = torch.einsum("hd,hde->he", full.query.bias.data.unflatten(0, (HEADS, -1)), keys)
    assert (run(mixer, x, [50, 20])[0] - run(full, x, [50, 20])[0]).abs().max() < 1e-12


def test_zero_queries_leave_the_content_term():
    mixer, x = make("collaborative"), rows(1, 40)
    mixer.query.weight.data.zero_()
    y = run(mixer, x)
    assert (y - y[:, :1]).abs().max() < 1e-12
    weights = (x @ mixer.content.weight.T / (mixer.query.out_features / HEADS) ** 0.5).softmax(1)
    read = torch.einsum("bnh,bhnd->bhd", weights, mixer.project(x)[2])
    assert (y[:, 0] - mixer.output(read.flatten(1))).abs().max() < 1e-12


@pytest.mark.parametrize(("width", "heads", "shared"), [(64, 2, 48), (64, 2, 5), (256, 8, 192)])
def test_parameter_counts(width, heads, shared):
    own = {} if shared == 3 * width // 4 else {"shared_width": shared}
    mixer = CollaborativeHeads(width, heads, **own)
    expected = 2 * width * shared + heads * shared + heads * width + 2 * (width * width + width)
    assert sum(parameter.numel() for parameter in mixer.parameters()) == expected


@pytest.mark.parametrize(("width", "hidden", "heads"), [(64, 128, 2), (256, 1024, 4), (32, 32, 4), (512, 1024, 8)])
def test_has_about_as_many_parameters_as_a_transformer(width, hidden, heads):
    common = {"width": width, "ff_width": hidden, "heads": heads, "depth": 1}
    collaborative, plain = (
        model(task(), name, **common).parameter_parts()["body"] for name in ("collaborative", "transformer")
    )
    assert 0.9 <= collaborative / plain <= 1


def test_invalid_options_are_rejected():
    for own, message in (({"shared_width": 0}, "shared_width=0"), ({"kv_heads": 1}, "kv_heads")):
        with pytest.raises(UserError, match=rf"model\.mixer\.{message}"):
            make("collaborative", **own)
