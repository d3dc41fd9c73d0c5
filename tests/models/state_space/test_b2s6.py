"""B2S6: equality with its definition, blocks and biases, invalid options."""

import pytest
import torch
from torch import nn

from lra_bench.contracts import UserError
from lra_bench.models.state_space.b2s6 import B2S6
from tests.support.mixer_cases import context, dense_output, make, rows, run


@pytest.mark.parametrize("causal", [False, True])
def test_equals_its_definition_with_gradients(causal):
    mixer, x, lengths = make("b2s6", causal=causal), rows(2, 70).requires_grad_(), [70, 13]
    found, leaves = [], [x, *mixer.parameters()]
    for compute in (run, lambda *case: dense_output(*case)[0]):
        y = context(70, lengths).padding.zero(compute(mixer, x, lengths))
        found.append((y, *torch.autograd.grad(y.square().sum(), leaves)))
    for one, expected in zip(*found, strict=True):
        assert (one - expected).abs().max() < 1e-10 * max(1, expected.abs().max().item())


def test_mirrored_weights_mirror_the_output():
    mixer, mirrored, x = make("b2s6"), make("b2s6"), rows(2, 30)
    mixer.output = mirrored.output = nn.Identity()
    with torch.no_grad():
        for name, parameter in mirrored.named_parameters():
            if name not in ("log_decay", "frequency"):
                parameter.copy_(parameter.roll(len(parameter) // 2, 0))
    y = run(mirrored, x.roll(8, -1).flip(1)).flip(1).roll(8, -1)
    assert (y - run(mixer, x)).abs().max() < 1e-10


@pytest.mark.parametrize("part", ["choice", "write", "read"])
def test_blocks_are_independent(part):
    """The weights of a block affect the outputs of its own channels only."""
    mixer, x = make("b2s6", causal=True), rows(1, 20)
    mixer.output = nn.Identity()
    before = run(mixer, x)
    with torch.no_grad():
        mixer.get_parameter(part)[1] += 1
    changed = (run(mixer, x) - before).abs().amax((0, 1)) > 1e-6
    assert changed.tolist() == [False] * 4 + [True] * 4 + [False] * 8


def test_biases_distinguish_channels_of_a_block():
    """Two channels with the same inputs and step sizes differ by their biases only."""
    mixer, x = make("b2s6", causal=True, blocks=2), rows(1, 20)
    mixer.output, x = nn.Identity(), x[..., :1].expand(-1, -1, 16)
    with torch.no_grad():
        for parameter in (mixer.step_bias, mixer.skip):
            parameter.fill_(0.3)
    different = run(mixer, x)
    assert (different[..., 0] - different[..., 1]).abs().max() > 1e-3
    nn.init.ones_(mixer.bias)
    equal = run(mixer, x)
    assert (equal[..., :8] - equal[..., :1]).abs().max() < 1e-12


def test_a_step_size_of_zero_leaves_only_the_skip_connection():
    mixer, x = make("b2s6", causal=True), rows(1, 20)
    nn.init.zeros_(mixer.choice)
    nn.init.constant_(mixer.step_bias, -800.0)
    mixer.output = nn.Identity()
    assert (run(mixer, x) - mixer.skip * x).abs().max() < 1e-12


@pytest.mark.parametrize(
    ("option", "value"), [("states", 0), ("blocks", 0), ("blocks", 3), ("blocks", 1), ("poles", "hippo")]
)
def test_invalid_options_raise_user_error(option, value):
    with pytest.raises(UserError, match=rf"model\.mixer\.{option}={value}"):
        make("b2s6", **{option: value})


def test_one_block_supports_the_causal_form_only():
    assert run(make("b2s6", blocks=1, causal=True), rows(1, 9)).isfinite().all()
    assert B2S6(16, 2, causal=True).choice.shape == (8, 2)
