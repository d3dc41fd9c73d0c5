"""Tests that every mixer must pass, derived from its declared capabilities.

The mixer of a new model file is tested here automatically. It needs a dense reference definition in ``tests/oracles``,
without which ``test_equals_its_definition`` fails.
"""

from functools import partial

import pytest
import torch
from torch.utils._pytree import tree_leaves, tree_map
from torch.utils.checkpoint import checkpoint

from lra_bench.build import load_class
from lra_bench.checks.properties import (
    changed_buffers,
    memory_exponent,
    valid,
    with_more_padding,
    with_other_later_tokens,
    with_other_padding,
)
from lra_bench.contracts import UserError
from lra_bench.models.convolution.convolved import Convolved
from lra_bench.models.convolution.hyena import Hyena
from lra_bench.models.full.softmax_attention import SoftmaxAttention
from lra_bench.models.mixer import Padding
from lra_bench.models.positions.position import Position
from lra_bench.models.state_space.mega import Mega
from tests.oracles import ORACLES, OUTPUTS
from tests.support.mixer_cases import (
    CASES,
    HEADS,
    NODES,
    POSITIONS,
    SPECS,
    WIDTH,
    context,
    dense_output,
    directions,
    first_direction,
    make,
    make_position,
    rows,
    run,
    run_stack,
    stack,
    total,
    with_prefix,
)
from tests.support.storage import exponents, largest_and_held

every_case = pytest.mark.parametrize(("name", "causal"), CASES)
every_mixer = pytest.mark.parametrize("name", NODES)
CAUSAL = [name for name, causal in CASES if causal]

HOOKS = {
    encoding: load_class(node["_target_"], Position, encoding).hooks - {"embed"} for encoding, node in POSITIONS.items()
}
"""Hooks of each position encoding, by name of its file, that the mixer applies; the backbone applies ``embed``."""


def supports(name, encoding):
    """Return whether the mixer declares support for all hooks of the position encoding."""
    return HOOKS[encoding] <= set(SPECS[name].positions)


SUPPORTED = [
    (name, encoding) for name in NODES for encoding in POSITIONS if HOOKS[encoding] and supports(name, encoding)
]


def cases_where(condition):
    """Parametrise over the cases of the mixers whose specification meets the condition."""
    return pytest.mark.parametrize(("name", "causal"), [case for case in CASES if condition(SPECS[case[0]])])


def assert_close(a, b, tolerance=1e-10):
    assert a.shape == b.shape
    assert (a - b).abs().max().item() <= tolerance


def zero_padding(y, lengths):
    """Return the outputs y (B, N, E) with those of padding set to zero, so that only real positions are compared."""
    return Padding.from_lengths(torch.as_tensor(lengths), y.shape[1]).zero(y)


@cases_where(lambda spec: spec.full_config is not None)
def test_equals_full_attention_with_full_config(name, causal):
    mixer = make(name, causal=causal, **SPECS[name].full_config)
    full = SoftmaxAttention(WIDTH, HEADS, causal=causal).double().eval()
    state = mixer.state_dict()
    full.load_state_dict({key: state[key] for key in full.state_dict()})
    for n in (9, 61):
        x, lengths = rows(2, n), [n, n // 2]
        assert_close(zero_padding(run(mixer, x, lengths), lengths), zero_padding(run(full, x, lengths), lengths))


@pytest.mark.one_in(2, 3)
@pytest.mark.agrees(compared="definition of the paper", within=1e-10)
@every_case
def test_equals_its_definition(name, causal, within):
    mixer = make(name, causal=causal)
    # ORACLES define attention weights, OUTPUTS the outputs of mixers without such weights.
    assert type(mixer) in {**ORACLES, **OUTPUTS}, f"{type(mixer).__name__} has no dense oracle in tests/oracles"
    for n, lengths in ((1, None), (9, [9, 5, 1]), (61, None), (64, [64, 59, 1])):
        x = rows(3 if lengths is None else len(lengths), n)
        y, expected = run(mixer, x, lengths), dense_output(mixer, x, lengths)[0]
        assert y.shape == x.shape and y.dtype == x.dtype and y.isfinite().all()
        if lengths is not None:
            y, expected = zero_padding(y, lengths), zero_padding(expected, lengths)
        assert_close(y, expected, within)


@pytest.mark.one_in(3)
@cases_where(lambda spec: spec.padding != "none")
def test_content_of_padding_has_no_effect(name, causal):
    mixer, n, lengths = make(name, causal=causal), 61, [61, 40, 1, 40, 1]
    garbage = torch.tensor([1.0, 1.0, 1.0, 1e6, 1e6])[:, None, None] * rows(5, n, seed=1)
    x = torch.where(valid(garbage, lengths), rows(5, n), garbage).requires_grad_()
    y, clean = with_other_padding(partial(run, mixer), x, lengths, garbage)
    assert_close(y, clean)
    (gradient,) = torch.autograd.grad(y.square().sum(), x)
    assert gradient.isfinite().all()
    assert_close(gradient, zero_padding(gradient, lengths), 0)


@pytest.mark.one_in(3)
@cases_where(lambda spec: spec.padding == "amount")
def test_amount_of_padding_has_no_effect(name, causal):
    mixer, x = make(name, causal=causal), rows(3, 50)
    for more in (1, 7, 64):
        for lengths in (None, [50, 33, 1]):
            assert_close(*with_more_padding(partial(run, mixer), x, lengths, rows(3, more, seed=1)))


@every_case
def test_a_sequence_without_tokens_stays_finite(name, causal):
    assert run(make(name, causal=causal), rows(2, 61), [61, 0]).isfinite().all()


@pytest.mark.parametrize("name", CAUSAL)
def test_later_tokens_have_no_effect(name):
    mixer = make(name, causal=True)
    for t in (15, 40):
        assert_close(*with_other_later_tokens(partial(run, mixer), rows(2, 61), t, 30 * rows(2, 61, seed=1)))


@pytest.mark.parametrize("name", [name for name in CAUSAL if SPECS[name].memory])
def test_sequences_in_parts_equal_the_whole_with_memory(name):
    """Passing the memory from part to part gives the same outputs and final memory as processing the whole sequence.

    A sequence that ends within a part keeps its memory. A memory of zeros is the one before the first token: a fifth
    sequence, which begins with the second part, is given zeros.
    """
    for cuts in ((1, 2, 3), (8, 40), (17, 33, 60)):
        mixer, x, lengths = make(name, causal=True), rows(4, 61), [61, 40, 17, 3]
        full, after = mixer(x, context(61, lengths))
        memory, parts = None, []
        for start, stop in zip((0, *cuts), (*cuts, 61), strict=True):
            if start == cuts[0]:
                # Append the fifth sequence: the tokens of the first one, rolled such that they begin at ``start``.
                memory = tree_map(lambda state: torch.cat((state, torch.zeros_like(state[:1]))), memory)
                x = torch.cat((x, x[:1].roll(-start, 1)))
                lengths.append(61)
            left = [min(max(length - start, 0), stop - start) for length in lengths]
            here = context(stop - start, left)
            y, here = mixer(x[:, start:stop], here.replace(positions=here.positions + start, memory=memory))
            memory = here.memory
            parts.append(zero_padding(y, left)[:4])
        assert_close(torch.cat(parts, 1), zero_padding(full, [61, 40, 17, 3]))
        for found, expected in zip(tree_leaves(memory), tree_leaves(after.memory), strict=True):
            assert_close(found[:4], expected)
        # The outputs of the fifth sequence in the last part, compared with a run without memory.
        fifth = run(mixer, x[4:, cuts[0] :])
        assert_close(y[4], fifth[0, -y.shape[1] :])


@pytest.mark.one_in(2, 3)
@pytest.mark.parametrize("name", CAUSAL)
def test_no_gradient_flows_from_the_future(name):
    mixer, n = make(name, causal=True), 53
    jacobian = torch.autograd.functional.jacobian(lambda x: run(mixer, x).sum(-1)[0], rows(1, n))[:, 0].norm(dim=-1)
    # A Fourier transform spreads rounding errors over the whole sequence.
    assert jacobian.triu(1).max() <= (1e-12 if isinstance(mixer, (Convolved, Hyena, Mega)) else 0)
    # Every output depends on its own token, except in the first window of memory-compressed attention: its queries have
    # a single key, so that the output does not depend on them. All weights of ReLU attention are zero if scores are
    # negative.
    if name != "relu_attention":
        assert jacobian.diagonal()[mixer.stride if name == "memory_compressed" else 0 :].min() > 0


@every_mixer
def test_undeclared_directions_raise_user_error(name):
    for causal, declared in ((True, SPECS[name].causal == "exact"), (False, SPECS[name].bidirectional)):
        if not declared:
            with pytest.raises(UserError, match=r"model\.mixer"):
                make(name, causal=causal)


@every_case
def test_gradient_reaches_every_parameter(name, causal):
    mixer = make(name, causal=causal)
    x, lengths = with_prefix(mixer, rows(3, 61).requires_grad_(), [61, 40, 3])
    total(mixer, x, lengths).backward()
    for key, parameter in mixer.named_parameters():
        assert parameter.grad is not None, key
        assert parameter.grad.isfinite().all() and parameter.grad.abs().max() > 0, key


@every_mixer
def test_permuting_tokens(name):
    """Permuting the tokens permutes the outputs if and only if the mixer is declared equivariant."""
    if first_direction(name):  # the value of ``causal``, true if the mixer has no bidirectional form
        pytest.skip("a causal mixer depends on order")
    # Values passed from layer to layer may depend on order even if the first layer does not.
    mixers, x = stack(name, 2) if SPECS[name].carries else [make(name)], rows(2, 61)
    order = torch.randperm(61, generator=torch.Generator().manual_seed(0))
    difference = (run_stack(mixers, x)[:, order] - run_stack(mixers, x[:, order])).abs().max()
    assert difference <= 1e-10 if SPECS[name].equivariant else difference > 1e-3


@every_case
def test_attention_is_linear_in_values_with_the_weights_of_the_oracle(name, causal):
    mixer, x, lengths = make(name, causal=causal), rows(2, 61), [61, 30]
    if type(mixer) not in ORACLES:
        pytest.skip("has no attention weights per head")
    q, k, v = mixer.project(x)
    where = context(61, lengths)
    zero = where.padding.zero_heads
    attend = partial(mixer.attend, q, k, context=where)
    total = dense_output(mixer, x, lengths)[1].sum(-1, keepdim=True)
    assert_close(zero(attend(torch.ones_like(v))), zero(total.expand_as(attend(v))))
    other = torch.randn(v.shape, generator=torch.Generator().manual_seed(0), dtype=v.dtype)
    assert_close(zero(attend(2 * v - 3 * other)), zero(2 * attend(v) - 3 * attend(other)))


@pytest.mark.one_in(3)
@every_case
def test_same_seed_same_output(name, causal):
    x = rows(2, 61)
    assert torch.equal(run(make(name, causal=causal), x), run(make(name, causal=causal), x))
    mixer, outputs = make(name, causal=causal, dropout=0.5), []
    for seed in (0, 0, 1):
        torch.manual_seed(seed)
        outputs.append(run(mixer, x))
    assert torch.equal(outputs[0], outputs[1])
    if list(mixer.parameters()):
        assert not torch.equal(outputs[0], outputs[2])
    mixer.eval()
    assert torch.equal(run(mixer, x), run(mixer, x))


@every_mixer
def test_the_seed_matters_if_declared_stochastic(name):
    x, causal = rows(2, 61), first_direction(name)
    same = torch.equal(run(make(name, causal=causal, seed=0), x), run(make(name, causal=causal, seed=1), x))
    assert same is not SPECS[name].stochastic


HALF = (torch.bfloat16, torch.float16)


@pytest.mark.one_in(6, 3)
@every_case
def test_initial_gradients_are_finite_in_half_precision(name, causal):
    # Biases are zero at initialisation, and so are the projections of padding.
    for dtype in HALF:
        mixer, x = make(name, causal=causal, dtype=torch.float32, weights=None), rows(2, 61, dtype=torch.float32)
        with torch.autocast("cpu", dtype):
            half = run(mixer, x.requires_grad_(), [61, 30])
        half.float().sum().backward()
        assert half.isfinite().all() and x.grad.isfinite().all()


@pytest.mark.one_in(4, 3)
@every_case
def test_half_precision(name, causal):
    mixer, x = make(name, causal=causal, dtype=torch.float32), rows(2, 61, dtype=torch.float32)
    exact = run(mixer, x, [61, 30])
    spec = SPECS[name]
    chooses = spec.family == "routed" or spec.causal == "pseudo" or name.startswith(("clustered", "memorizing"))
    for dtype in HALF:
        with torch.autocast("cpu", dtype):
            half = run(mixer, x, [61, 30])
        assert half.isfinite().all()
        if chooses:
            # Rounding may change which of nearly equal keys are chosen, and with them the outputs of few queries.
            # Outputs at padding may be 0.
            assert ((half.float() - exact).norm(dim=-1) / exact.norm(dim=-1)).nanmedian() < 2e-2
        else:
            assert ((half.float() - exact).norm() / exact.norm()).item() < 2e-2


@pytest.mark.one_in(3)
@every_case
def test_weights_and_buffers_determine_the_outputs(name, causal):
    x = rows(2, 61)
    mixer, other = make(name, causal=causal), make(name, causal=causal, seed=5, weights=9)
    if mixer.state_dict():
        assert not torch.equal(run(mixer, x), run(other, x))
    other.load_state_dict(mixer.state_dict())
    assert torch.equal(run(mixer, x), run(other, x))


@pytest.mark.one_in(4, 3)
@every_case
def test_buffers_do_not_change_inside_forward(name, causal):
    mixer = make(name, causal=causal, dropout=0.1)
    step = lambda: run(mixer, rows(2, 61).requires_grad_()).sum().backward()  # noqa: E731
    assert changed_buffers(mixer, step) == []


@pytest.mark.one_in(6, 3)
@every_case
def test_checkpointing_changes_no_gradient(name, causal):
    for dropout in (0.0, 0.3):
        mixer, gradients = make(name, causal=causal, dropout=dropout), []
        for checkpointed in (False, True):
            x = rows(2, 61).requires_grad_()
            torch.manual_seed(0)
            inputs = mixer, *with_prefix(mixer, x, [61, 30])
            y = checkpoint(total, *inputs, use_reentrant=False) if checkpointed else total(*inputs)
            gradients.append(torch.autograd.grad(y, [x, *mixer.parameters()]))
        for stored, recomputed in zip(*gradients, strict=True):
            assert torch.equal(stored, recomputed)


@pytest.mark.one_in(5, 3)
@pytest.mark.parametrize(
    ("name", "causal", "dropout", "padded"),
    [*((*case, 0.0, True) for case in CASES), *((name, first_direction(name), 0.1, False) for name in NODES)],
)
def test_memory_grows_as_declared(name, causal, dropout, padded):
    """The largest tensor of forward and backward pass grows with the declared exponent."""
    mixer = make(name, causal=causal, dropout=dropout, dtype=torch.float32, max_length=2048)
    mixer.train()

    def at(n):
        x = rows(2, n, dtype=torch.float32).requires_grad_()
        return run(mixer, x, [n, n // 2] if padded else None)

    lengths = lengths_to_measure(name)
    found, sizes = exponents(at, lengths)
    assert max(found) <= memory_exponent(SPECS[name].materialises, SPECS[name].growth) + 0.1
    if memory_exponent(SPECS[name].materialises, SPECS[name].growth) == 1:
        # Bound on the elements, which a quadratic tensor exceeds even if it is split into eight parts.
        assert sizes[-1] <= 2 * lengths[-1] * max(WIDTH, HEADS * lengths[-1] * 3 // 32)


def lengths_to_measure(name):
    """Return shorter lengths for mixers of quadratic time, or that run several of torch's operators per position."""
    if name == "gru":
        return 256, 512
    return (512, 1024) if name == "lstm" or SPECS[name].growth >= 2 else (1024, 2048)


class Rotated(Position):
    """Rotate pairs of features by an angle proportional to the position (Su et al. 2021, arXiv 2104.09864)."""

    name = "turned"
    hooks = frozenset({"rotate"})

    def rotate(self, q, k, q_positions, k_positions):
        return self._turn(q, q_positions), self._turn(k, k_positions)

    def _turn(self, x, positions):
        rates = 0.3 ** torch.arange(x.shape[-1] // 2, dtype=x.dtype)
        angle = positions[..., None] * rates
        a, b = x.chunk(2, -1)
        return torch.cat((a * angle.cos() - b * angle.sin(), a * angle.sin() + b * angle.cos()), -1)


@every_mixer
def test_rotation_is_supported_if_declared(name):
    node, causal = NODES[name], first_direction(name)
    turned = Rotated(WIDTH, HEADS, 128)
    if "rotate" not in SPECS[name].positions:
        with pytest.raises(UserError, match="position=turned"):
            make(name, causal=causal, position=turned)
        return
    assert node
    plain, mixer, x = make(name, causal=causal), make(name, causal=causal, position=turned), rows(2, 61)
    y, shifted = (mixer(x, context(61).replace(positions=torch.arange(61) + shift))[0] for shift in (0, 17))
    assert (y - run(plain, x)).abs().max() > 1e-3
    if not SPECS[name].stochastic:
        assert_close(y, shifted)


@pytest.mark.parametrize(
    ("name", "causal"), [case for case in CASES if not all(supports(case[0], encoding) for encoding in POSITIONS)]
)
def test_undeclared_positions_raise_user_error(name, causal):
    for encoding in POSITIONS:
        if not supports(name, encoding):
            with pytest.raises(UserError, match=f"position={encoding}: .*support.* hook"):
                make(name, causal=causal, position=make_position(encoding, causal=causal))


@pytest.mark.one_in(5)
@pytest.mark.agrees(
    "position=alibi",
    "position=da_transformer",
    "position=kerple",
    "position=rope",
    "position=shaw",
    "position=t5",
    "position=transformer_xl",
    compared="definition of the paper, in every mixer that supports it",
    within=1e-10,
)
@pytest.mark.parametrize(
    ("name", "causal", "encoding"),
    [(name, causal, encoding) for name, encoding in SUPPORTED for causal in directions(name)],
)
def test_declared_positions_are_supported(name, causal, encoding, within):
    """The position changes the output, a shift of all positions does not; gradients are finite; the oracle agrees."""
    position = make_position(encoding, causal=causal)
    n, lengths = 61, [61, 30]
    mixer, x = make(name, causal=causal, position=position), rows(2, n).requires_grad_()
    y = zero_padding(run(mixer, x, lengths), lengths)
    plain = {key: value for key, value in mixer.state_dict().items() if not key.startswith("position.")}
    without = make(name, causal=causal)
    without.load_state_dict(plain)
    assert (y - zero_padding(run(without, x, lengths), lengths)).abs().max() > 1e-4
    where = context(n, lengths)
    if not SPECS[name].stochastic:
        assert_close(y, zero_padding(mixer(x, where.replace(positions=where.positions + 17))[0], lengths))
        by_row = where.positions + torch.tensor([[3], [40]])
        assert_close(y, zero_padding(mixer(x, where.replace(positions=by_row))[0], lengths))
    weights = [x, *position.parameters()]
    gradients = torch.autograd.grad(y.square().sum(), weights)
    for gradient in gradients:
        assert gradient.isfinite().all() and gradient.abs().max() > 0
    expected = zero_padding(dense_output(mixer, x, lengths)[0], lengths)
    assert_close(y, expected, within)
    for one, other in zip(gradients, torch.autograd.grad(expected.square().sum(), weights), strict=True):
        assert_close(one, other, 1e-9)


@pytest.mark.slow
@pytest.mark.one_in(4)
@pytest.mark.parametrize(("name", "encoding"), SUPPORTED)
def test_memory_grows_as_declared_with_every_position(name, encoding):
    causal = first_direction(name)
    position = make_position(encoding, causal=causal)
    mixer = make(name, causal=causal, dropout=0.1, dtype=torch.float32, max_length=2048, position=position)

    def at(n):
        return run(mixer, rows(2, n, dtype=torch.float32).requires_grad_(), [n, n // 2])

    longer = lengths_to_measure(name)[0]
    sizes = [largest_and_held(lambda n=n: at(n)) for n in (longer // 2, longer)]
    for short, long in zip(*sizes, strict=True):
        assert long <= short * 2 ** (memory_exponent(SPECS[name].materialises, SPECS[name].growth) + 0.1)


@pytest.mark.one_in(4)
@cases_where(lambda spec: "rotate" in spec.positions and spec.padding == "amount")
def test_positions_that_depend_on_the_length_ignore_padding(name, causal):
    for scaling in ("linear", "ntk", "yarn"):
        position = make_position("rope", causal=causal, max_length=20, scaling=scaling)
        mixer, x, lengths = make(name, causal=causal, position=position), rows(2, 50), [50, 33]
        longer = torch.cat((x, rows(2, 30, seed=1)), 1)
        assert_close(
            zero_padding(run(mixer, x, lengths), lengths), zero_padding(run(mixer, longer, lengths), lengths)[:, :50]
        )
