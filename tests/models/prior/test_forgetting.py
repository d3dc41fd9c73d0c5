"""Forgetting Transformer: set_gates, open and closed gates, gradients, and precision of cumulative sums."""

import pytest
import torch

from lra_bench.models.positions.alibi import slopes
from tests.support.mixer_cases import HEADS, context, dense_output, make, make_position, rows, run

directions = pytest.mark.parametrize("causal", [False, True])


def set_gates(mixer, log_gates):
    """Set the gates of ``mixer`` to exp(``log_gates``) (H,) in both directions, independent of x."""
    torch.nn.init.zeros_(mixer.forget.weight)
    with torch.no_grad():
        gates = log_gates.to(mixer.forget.bias).exp()
        mixer.forget.bias.copy_(gates.logit().repeat(1 if mixer.causal else 2))
    return mixer


def common_weights(mixer):
    return {key: value for key, value in mixer.state_dict().items() if not key.startswith("forget")}


@directions
@pytest.mark.parametrize("lengths", [None, [40, 23]])
def test_constant_gates_equal_alibi(causal, lengths):
    mixer = set_gates(make("forgetting", causal=causal), -slopes(HEADS))
    alibi = make("transformer", causal=causal, position=make_position("alibi", causal=causal))
    alibi.load_state_dict({**alibi.state_dict(), **common_weights(mixer)})
    x = rows(2, 40)
    mask = (lambda y: y) if lengths is None else context(40, lengths).padding.zero
    assert (mask(run(mixer, x, lengths)) - mask(run(alibi, x, lengths))).abs().max() < 1e-10


@directions
def test_open_gates_equal_a_transformer(causal):
    mixer, full = make("forgetting", causal=causal), make("transformer", causal=causal)
    torch.nn.init.zeros_(mixer.forget.weight)
    torch.nn.init.constant_(mixer.forget.bias, 80.0)
    full.load_state_dict(common_weights(mixer))
    assert (run(mixer, rows(2, 30)) - run(full, rows(2, 30))).abs().max() < 1e-12


@directions
@pytest.mark.parametrize("options", [{}, {"kv_heads": 1}, {"score": "bilinear"}])
def test_outputs_and_gradients_match_the_definition(causal, options):
    if options.get("score"):
        mixer, x = make("forgetting", causal=causal, **options), rows(2, 20)
        assert torch.autograd.grad(run(mixer, x).square().sum(), mixer.between)[0].abs().max() > 0
        return
    mixer, x, lengths = make("forgetting", causal=causal, **options), rows(2, 20).requires_grad_(), [20, 13]
    found, leaves = [], [x, *mixer.parameters()]
    for compute in (run, lambda *case: dense_output(*case)[0]):
        y = context(20, lengths).padding.zero(compute(mixer, x, lengths))
        found.append((y, *torch.autograd.grad(y.square().sum(), leaves)))
    for actual, expected in zip(*found, strict=True):
        assert (actual - expected).abs().max() < 1e-10


@pytest.mark.parametrize("at", [0, 7, 19])
def test_closed_gate_masks_keys_beyond_its_token(at):
    """A closed gate masks the keys on the other side of its token, in both directions."""
    mixer = make("forgetting")
    set_gates(mixer, torch.tensor([-1e-9, -1e-9]))
    with torch.no_grad():
        mixer.forget.weight[:, 0] = -1e5
    x = rows(1, 20)
    x[..., 0] = 0
    x[0, at, 0] = 1
    x.requires_grad_()
    for token in range(20):
        (gradient,) = torch.autograd.grad(run(mixer, x)[0, token].square().sum(), x)
        seen = (gradient[0, :, 1:].norm(dim=-1) > 0).nonzero().flatten().tolist()
        first, last = (at if token >= at else 0), (at if token <= at else 19)
        # The token with the closed gate attends only to itself, because its gate acts in both directions.
        assert seen == list(range(first, last + 1)), (token, seen)


def test_swapped_gates_mirror_the_output():
    mixer, mirrored, x = make("forgetting"), make("forgetting"), rows(2, 30)
    with torch.no_grad():
        for parameter in mirrored.forget.parameters():
            parameter.copy_(parameter.roll(HEADS, 0))
    assert (run(mirrored, x.flip(1)).flip(1) - run(mixer, x)).abs().max() < 1e-12


def test_long_sequences_keep_precision():
    """Cumulative sums of strong gates reach thousands, at which single precision has errors of about a thousandth."""
    exact, mixer = make("forgetting", causal=True), make("forgetting", causal=True, dtype=torch.float32)
    for each in (exact, mixer):
        set_gates(each, torch.tensor([-5.0, -0.5]))
    x = rows(1, 3000)
    error = (run(mixer, x.float()).double() - run(exact, x)).abs().max()
    assert error < 2e-5
