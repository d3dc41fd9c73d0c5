"""B2S6: its definition with gradients, what blocks and biases add, and what it is without choice."""

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
    for ours, expected in zip(*found, strict=True):
        assert (ours - expected).abs().max() < 1e-10 * max(1, expected.abs().max().item())


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
def test_a_block_is_not_chosen_for_by_others(part):
    """What a block's own weights change is its own channels alone."""
    mixer, x = make("b2s6", causal=True), rows(1, 20)
    mixer.output = nn.Identity()
    before = run(mixer, x)
    with torch.no_grad():
        mixer.get_parameter(part)[1] += 1
    changed = (run(mixer, x) - before).abs().amax((0, 1)) > 1e-6
    assert changed.tolist() == [False] * 4 + [True] * 4 + [False] * 8


def test_biases_tell_channels_of_a_block_apart():
    """Two channels that hold the same, with the same steps, differ by their biases alone."""
    mixer, x = make("b2s6", causal=True, blocks=2), rows(1, 20)
    mixer.output, x = nn.Identity(), x[..., :1].expand(-1, -1, 16)
    with torch.no_grad():
        for parameter in (mixer.step_bias, mixer.skip):
            parameter.fill_(0.3)
    apart = run(mixer, x)
    assert (apart[..., 0] - apart[..., 1]).abs().max() > 1e-3
    nn.init.ones_(mixer.bias)
    alike = run(mixer, x)
    assert (alike[..., :8] - alike[..., :1]).abs().max() < 1e-12


def test_a_step_of_nothing_skips_the_row():
    mixer, x = make("b2s6", causal=True), rows(1, 20)
    nn.init.zeros_(mixer.choice)
    nn.init.constant_(mixer.step_bias, -800.0)
    mixer.output = nn.Identity()
    assert (run(mixer, x) - mixer.skip * x).abs().max() < 1e-12


@pytest.mark.parametrize(
    ("option", "value"), [("states", 0), ("blocks", 0), ("blocks", 3), ("blocks", 1), ("poles", "hippo")]
)
def test_bad_options_are_refused(option, value):
    with pytest.raises(UserError, match=rf"model\.mixer\.{option}={value}"):
        make("b2s6", **{option: value})


def test_one_block_reads_one_way():
    assert run(make("b2s6", blocks=1, causal=True), rows(1, 9)).isfinite().all()
    assert B2S6(16, 2, causal=True).choice.shape == (8, 2)
