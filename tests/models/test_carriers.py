"""Tests of systems that pass values from layer to layer, which must be tested as a stack."""

import pytest
import torch
from torch.utils.checkpoint import checkpoint

from lra_bench.contracts import UserError
from lra_bench.models.mixer import Padding
from tests.support.mixer_cases import CASES, SPECS, context, rows, run_stack, stack
from tests.support.model_cases import batch_for, model, task
from tests.support.storage import exponents

# SAC passes edge probabilities that no layer reads: they are for the loss of the whole model.
CARRIERS = [(name, causal) for name, causal in CASES if SPECS[name].carries and name != "sac"]
every_carrier = pytest.mark.parametrize(("name", "causal"), CARRIERS)


def real(y, lengths):
    return Padding.from_lengths(torch.tensor(lengths), y.shape[1]).zero(y)


@every_carrier
def test_padding_has_no_effect(name, causal):
    if SPECS[name].padding != "amount":
        pytest.skip("declares that the amount of padding has an effect")
    mixers, x, lengths = stack(name, causal=causal), rows(3, 40), [40, 23, 1]
    longer = torch.cat((real(x, lengths), torch.zeros_like(x[:, :9])), 1)
    dirty = torch.where(Padding.from_lengths(torch.tensor(lengths), 49).valid[..., None], longer, 1e3 * rows(3, 49))
    dirty.requires_grad_()
    expected = real(run_stack(mixers, x, lengths), lengths)
    y = real(run_stack(mixers, dirty, lengths), lengths)
    assert (y[:, :40] - expected).abs().max() < 1e-10
    (gradient,) = torch.autograd.grad(y.square().sum(), dirty)
    assert gradient.isfinite().all() and torch.equal(gradient, real(gradient, lengths))
    assert (run_stack(mixers, x)[0] - expected[0]).abs().max() < 1e-10
    assert run_stack(mixers, x, [40, 0, 1]).isfinite().all()


@pytest.mark.parametrize("name", [name for name, causal in CARRIERS if causal])
@pytest.mark.parametrize("t", [0, 15, 16, 38])
def test_later_tokens_have_no_effect(name, t):
    mixers, x = stack(name, causal=True), rows(2, 40).requires_grad_()
    changed = torch.cat((x[:, : t + 1], 30 * rows(2, 39 - t, seed=1)), 1)
    y = run_stack(mixers, x)
    assert (y[:, : t + 1] - run_stack(mixers, changed)[:, : t + 1]).abs().max() < 1e-10
    (gradient,) = torch.autograd.grad(y[:, t].square().sum(), x)
    assert not gradient[:, t + 1 :].any() and (gradient[:, : t + 1].norm(dim=-1) > 0).all()


@every_carrier
def test_gradient_reaches_every_parameter(name, causal):
    mixers = stack(name, causal=causal)
    run_stack(mixers, rows(3, 40), [40, 23, 1]).square().sum().backward()
    for key, parameter in mixers.named_parameters():
        assert parameter.grad is not None and parameter.grad.isfinite().all() and parameter.grad.any(), key


@every_carrier
def test_passed_values_have_an_effect(name, causal):
    """The second layer uses the values of the first: with those of another sequence its outputs differ."""
    if SPECS[name].carries == ("luna",) and causal:
        pytest.skip("passes weights, which are the same for all sequences")
    if SPECS[name].carries == ("linformer",):
        pytest.skip("passes weights, which are the same for all sequences")
    first, second = stack(name, 2, causal=causal)
    x = rows(1, 30)
    contexts = [first(each, context(30))[1].replace(memory=None) for each in (x, rows(1, 30, seed=1))]
    assert set(contexts[0].carry) == set(SPECS[name].carries)
    assert (second(x, contexts[0])[0] - second(x, contexts[1])[0]).abs().max() > 1e-4
    assert set(second(x, contexts[0])[1].carry) == set(SPECS[name].carries)


@every_carrier
def test_examples_are_independent_and_no_state_is_kept(name, causal):
    mixers, x, lengths = stack(name, causal=causal), rows(3, 40), [40, 23, 7]
    y = run_stack(mixers, x, lengths)
    for row, length in enumerate(lengths):
        alone = run_stack(mixers, x[row : row + 1], [length])
        assert (real(alone, [length]) - real(y[row : row + 1], [length])).abs().max() < 1e-10
    assert torch.equal(run_stack(mixers, x, lengths), y)


@pytest.mark.one_in(4)
@every_carrier
@pytest.mark.parametrize("dropout", [0.0, 0.3])
@pytest.mark.parametrize("by_layer", [False, True])
def test_checkpointing_changes_no_gradient(name, causal, dropout, by_layer):
    """The stack is checkpointed as a whole, or layer by layer with the passed values in between."""
    mixers, gradients = stack(name, causal=causal, dropout=dropout).train(), []

    def layer_by_layer(mixers, x, lengths):
        state = context(x.shape[1], lengths)
        for mixer in mixers:
            y, state = checkpoint(mixer, x, state.replace(memory=None), use_reentrant=False)
            x = x + y
        return x

    def as_a_whole(mixers, x, lengths):
        return checkpoint(run_stack, mixers, x, lengths, use_reentrant=False)

    for compute in (run_stack, layer_by_layer if by_layer else as_a_whole):
        x = rows(2, 40).requires_grad_()
        torch.manual_seed(0)
        y = compute(mixers, x, [40, 23])
        gradients.append(torch.autograd.grad(y.square().sum(), [x, *mixers.parameters()]))
    for stored, recomputed in zip(*gradients, strict=True):
        assert (stored - recomputed).abs().max() <= 1e-10 * (1 + stored.abs().max())


@pytest.mark.one_in(4)
@every_carrier
@pytest.mark.parametrize("dropout", [0.0, 0.1])
def test_memory_grows_as_declared(name, causal, dropout):
    spec = SPECS[name]
    mixers = stack(name, causal=causal, dropout=dropout, dtype=torch.float32, max_length=1024)
    lengths = (256, 512) if spec.growth >= 2 else (512, 1024)
    found, _ = exponents(
        lambda n: run_stack(mixers, rows(2, n, dtype=torch.float32).requires_grad_(), [n, n // 2]), lengths
    )
    assert max(found) <= (spec.growth if spec.materialises == "maps" else 1) + 0.1


@every_carrier
def test_half_precision(name, causal):
    mixers, x = stack(name, causal=causal, dtype=torch.float32), rows(2, 40, dtype=torch.float32)
    exact = run_stack(mixers, x, [40, 23])
    with torch.autocast("cpu", torch.bfloat16):
        half = run_stack(mixers, x, [40, 23])
    assert half.isfinite().all()
    assert ((half.float() - exact).norm() / exact.norm()).item() < 2e-2


@pytest.mark.parametrize("name", sorted({name for name, _ in CARRIERS}))
def test_reversible_blocks_raise_user_error(name):
    with pytest.raises(UserError, match=r"backbone\.reversible=true: .* passes values from layer to layer"):
        model(task(), name, reversible=True)


@every_carrier
def test_padding_of_a_network_has_no_effect(name, causal):
    if SPECS[name].padding != "amount":
        pytest.skip("declares that the amount of padding has an effect")
    spec = task(direction="causal" if causal else "either")
    network = model(spec, name, depth=3)
    short, long = batch_for(spec, (17, 9)), batch_for(spec, (17, 9), width=24)
    long.tokens[:, :17] = short.tokens
    assert (network(short).logits - network(long).logits).abs().max() < 1e-12
