"""Forms of kernels for GPUs, run on the CPU: outputs and gradients in float64 equal those of the forms for CPUs."""

from collections import Counter

import pytest
import torch
from torch.utils._python_dispatch import TorchDispatchMode

import lra_bench.models.kernels.rows as row_slices
from lra_bench.models.kernels import biased, selective_scan
from lra_bench.models.kernels.devices import gpu_forms, uses_gpu_form
from lra_bench.models.kernels.terms import difference_term, gaussian_term
from tests.support.mixer_cases import context, directions, make, make_position, rows
from tests.support.storage import exponents, held_for_backward

SYSTEMS = (
    "b2s6", "camtl", "forgetting", "gaussian_transformer", "local_gaussian", "mamba", "pattern_guided", "sac",
    "score_additive", "synthesizer_factorised_dense",
)  # fmt: skip
"""Systems with a form for GPUs that needs at most half of the launches or bytes."""
GUIDED: dict[str, dict[str, object]] = {"previous": {}, "first": {"kv_heads": 1}, "self": {"score": "bilinear"}}
VARIANTS: list[tuple[str, dict[str, object]]] = [
    *((name, {}) for name in SYSTEMS),
    ("camtl", {"condition": "input"}),
    ("forgetting", {"kv_heads": 1}),
    ("mamba_negative", {}),
    *(
        ("pattern_guided", {"head_losses": {"name": "pattern_guided", "patterns": {pattern: 1}}, **options})
        for pattern, options in GUIDED.items()
    ),
    ("sac", {"sequential": True}),
    ("score_additive", {"kv_heads": 1}),
    ("synthesizer_factorised_dense", {"mixture": "plus_alpha"}),
]
CASES = [
    (name, causal, options)
    for name, options in VARIANTS
    for causal in directions(name)
    if not (causal and options.get("condition") == "input")
]
LENGTH, LENGTHS = 23, [23, 9]


@pytest.fixture(autouse=True)
def _small_slices(monkeypatch):
    """Use slices of at most seven queries and chunks of five positions, the last ones shorter."""
    monkeypatch.setattr(biased, "SLICE_BYTES", 4 * 2 * 2 * LENGTH * 7)
    monkeypatch.setattr(row_slices, "DEVICE_ROWS", 7)
    monkeypatch.setattr(row_slices, "NUMBERS_AT_ONCE", 1)
    monkeypatch.setattr(selective_scan, "GPU_CHUNK", 5)


class Operators(TorchDispatchMode):
    """Counts operators by name."""

    def __init__(self):
        super().__init__()
        self.counts = Counter()

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        self.counts[func.name()] += 1
        return func(*args, **(kwargs or {}))


def with_gradients(mixer, lengths):
    """Return output and losses with their gradients with respect to inputs and parameters, and the operators."""
    x = rows(2, LENGTH).requires_grad_()
    torch.default_generator.manual_seed(0)
    with Operators() as operators:
        y, after = mixer.train()(x, context(LENGTH, lengths))
        y = y if lengths is None else context(LENGTH, lengths).padding.zero(y)
        loss = y.square().sum() + sum(each.square().sum() for each in (*after.losses.values(), *after.carry.values()))
        gradients = torch.autograd.grad(loss, [x, *mixer.parameters()], allow_unused=True)
    return (y, loss, *gradients), operators.counts


@pytest.mark.one_in(3)
@pytest.mark.parametrize(("name", "causal", "options"), CASES)
@pytest.mark.parametrize("lengths", [None, LENGTHS])
def test_gpu_form_equals_the_cpu_form(name, causal, options, lengths):
    mixer = make(name, causal=causal, **options)
    expected, operators = with_gradients(mixer, lengths)
    with gpu_forms():
        actual, others = with_gradients(mixer, lengths)
    assert others != operators  # another form ran
    compare(actual, expected)


@pytest.mark.parametrize("name", ["alibi", "shaw", "da_transformer"])
@pytest.mark.parametrize("system", ["transformer", "score_additive"])
def test_positions_have_the_same_effect_in_both_forms(name, system):
    mixer = make(system, causal=True, position=make_position(name, causal=True).double())
    expected, _ = with_gradients(mixer, None)
    with gpu_forms():
        compare(with_gradients(mixer, None)[0], expected)


def compare(actual, expected):
    for one, other in zip(actual, expected, strict=True):
        assert (one is None) == (other is None)
        assert one is None or (one - other).abs().max() <= 1e-9 * max(1, other.abs().max())


@pytest.mark.one_in(4)
@pytest.mark.parametrize("name", [name for name in SYSTEMS if name != "sac"])
def test_memory_is_linear(name, monkeypatch):
    """With slices and chunks of fixed size, no storage and no sum of stored tensors grows faster than the length."""
    monkeypatch.setattr(biased, "SLICE_BYTES", 2**12)
    monkeypatch.setattr(row_slices, "DEVICE_ROWS", 4)
    mixer = make(name, max_length=256)

    def at(n):
        return mixer.train()(rows(1, n), context(n))[0]

    with gpu_forms():
        growth, _ = exponents(at, (64, 128))
        held = [held_for_backward(lambda n=n: at(n)) for n in (64, 128)]
    assert max(growth) < 1.1 and held[1] < 2.2 * held[0]


def test_form_depends_on_the_device():
    x = torch.zeros(2)
    assert not uses_gpu_form(x) and not uses_gpu_form(x.to("meta"))
    with gpu_forms():
        assert uses_gpu_form(x)
    assert not uses_gpu_form(x)


@pytest.mark.parametrize("numbers", [1, 2])
def test_gradients_of_terms_equal_finite_differences(numbers):
    """Every number of queries and keys is independent here, unlike in a layer."""
    generator = torch.Generator().manual_seed(numbers)
    own, others = (
        torch.randn(shape, generator=generator, dtype=torch.float64, requires_grad=True)
        for shape in ((2, 3, numbers), (2, numbers, 7))
    )
    assert torch.autograd.gradcheck(lambda a, b: difference_term(a, b, 2, torch.float64), (own, others))
    term, places = difference_term(own, others, 2, torch.float64), torch.arange(7)
    later = places > torch.arange(2, 5)[:, None]
    last = numbers - 1
    expected = torch.where(later, own[..., last:] - others[:, last:], own[..., :1] - others[:, :1])
    assert torch.equal(term, expected)
    centre, steepness = 4 * own[..., :1], own[..., :1] - 3
    assert torch.autograd.gradcheck(lambda a, b: gaussian_term(places, a, b, torch.float64), (centre, steepness))
