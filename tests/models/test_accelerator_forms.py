"""Forms of kernels for GPUs, run on the CPU: outputs and gradients in float64 equal those of the forms for CPUs."""

import pytest
import torch

from lra_bench.models.kernels import biased, selective_scan
from lra_bench.models.kernels.devices import gpu_forms
from tests.support.mixer_cases import context, directions, make, rows, run

SYSTEMS = {
    "b2s6": {},
    "camtl": {},
    "forgetting": {},
    "gaussian_transformer": {},
    "local_gaussian": {},
    "mamba": {},
    "sac": {},
    "score_additive": {},
    "synthesizer_factorised_dense": {},
}
"""Systems whose form for GPUs differs, with the options to test."""
VARIANTS = [
    *SYSTEMS.items(),
    ("camtl", {"condition": "input"}),
    ("forgetting", {"kv_heads": 1}),
    ("score_additive", {"kv_heads": 1}),
    ("synthesizer_factorised_dense", {"mixture": "plus_alpha"}),
    ("sac", {"sequential": True}),
]
LENGTH, LENGTHS = 23, [23, 9]


def with_gradients(mixer, x, lengths):
    """Return the output at tokens and its gradients with respect to the inputs and all parameters."""
    x = x.clone().requires_grad_()
    torch.manual_seed(0)
    y = run(mixer, x, lengths)
    y = y if lengths is None else context(LENGTH, lengths).padding.zero(y)
    leaves = [x, *mixer.parameters()]
    return y, *torch.autograd.grad(y.square().sum(), leaves, allow_unused=True)


@pytest.mark.parametrize(
    ("name", "causal", "options"),
    [
        (name, causal, options)
        for name, options in VARIANTS
        for causal in directions(name)
        if not (causal and options.get("condition") == "input")
    ],
)
@pytest.mark.parametrize("lengths", [None, LENGTHS])
def test_gpu_form_equals_the_cpu_form(name, causal, options, lengths, monkeypatch):
    # Slices of seven queries and chunks of five positions.
    monkeypatch.setattr(biased, "SLICE_BYTES", 4 * 2 * 2 * LENGTH * 7)
    monkeypatch.setattr(selective_scan, "GPU_CHUNK", 5)
    mixer, x = make(name, causal=causal, **options), rows(2, LENGTH)
    expected = with_gradients(mixer, x, lengths)
    with gpu_forms():
        actual = with_gradients(mixer, x, lengths)
    for one, other in zip(actual, expected, strict=True):
        assert (one is None) == (other is None)
        assert one is None or (one - other).abs().max() <= 1e-9 * max(1, other.abs().max())
