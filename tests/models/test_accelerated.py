"""Kernels of flash-linear-attention: equal to the kernels of this package, and used only if an option enables them."""

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest
import torch
import torch.nn.functional as F

from lra_bench.config.validation import check_hardware
from lra_bench.contracts import Accelerable, UserError
from lra_bench.models.kernels import accelerated
from lra_bench.models.kernels.corrected_decay import corrected_decay_attention
from lra_bench.models.kernels.decay import decay_attention
from lra_bench.profiling.attention_backend import attention_backend
from lra_bench.runtime.hardware import Hardware, HardwareOptions, resolve, slug
from tests.support.mixer_cases import NODES, first_direction, make
from tests.support.model_cases import batch_for, model, task

SMALL_CHUNKS = ("delta_product", "gated_delta_product")
"""Systems whose chunks differ from those of the accelerated kernel, and with them the rounding."""
SYSTEMS = (
    "delta_net", "delta_net_negative", "gated_delta_net", "gated_delta_net_negative", "gla", "mamba2",
    "mamba2_negative", "mlstm", "retnet", "rwkv7", *SMALL_CHUNKS,
)  # fmt: skip
KINDS = ("scalar", "vector", "delta", "corrected")
INTERNAL: tuple[Callable[..., Any], ...] = (decay_attention, corrected_decay_attention)
ACCELERATED = (accelerated.accelerated_decay_attention, accelerated.accelerated_corrected_decay_attention)
GPU = HardwareOptions(device="cuda", accelerated=True)


def hardware(**options):
    return Hardware(torch.device("cpu"), "fp32", 1, False, None, "cpu", **options)


def draw(kind, n, keys, values, dtype):
    """Return inputs of a kernel that are exactly representable in ``dtype``, except decays, strengths and states."""
    generator = torch.Generator().manual_seed(n)

    def normal(width):
        return torch.randn(2, 2, n, width, generator=generator)

    def uniform(*width):
        return torch.rand(2, 2, n, *width, generator=generator)

    q, k, v = normal(keys), F.normalize(normal(keys), dim=-1), normal(values)
    state = torch.randn(2, 2, keys, values, generator=generator)
    if kind == "corrected":
        unit = F.normalize(normal(keys), dim=-1)
        return *(x.to(dtype).float() for x in (q, k, v)), -uniform(keys), unit, -uniform(keys) * unit, state
    projections = tuple(x.to(dtype).float() for x in (q, k, v))
    decay = -uniform(keys) if kind == "vector" else -uniform()
    return *projections, decay, *((uniform(),) if kind == "delta" else ()), state


def compute(kind, use_internal, inputs):
    """Return outputs, last state and their gradients with respect to all inputs, from either kernel."""
    leaves = [x.detach().clone().requires_grad_() for x in inputs]
    *tensors, state = leaves
    strength = {"strength": tensors.pop()} if kind == "delta" else {}
    o, last = (INTERNAL if use_internal else ACCELERATED)[kind == "corrected"](*tensors, state=state, **strength)
    loss = o.double().sin().sum() + last.double().sin().sum()
    return o, last, *torch.autograd.grad(loss, leaves)


@pytest.mark.gpu
@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize(("n", "keys", "values"), [(5, 24, 40), (100, 8, 17), (1000, 64, 64)])
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_accelerated_kernels_match_internal_kernels_with_gradients(kind, n, keys, values, dtype):
    pytest.importorskip("fla", reason="the extra 'accelerated' is not installed")
    inputs = [x.cuda() for x in draw(kind, n, keys, values, dtype)]
    expected = compute(kind, True, [x.double() for x in inputs])
    try:
        with torch.autocast("cuda", dtype):
            found = compute(kind, False, inputs)
    except RuntimeError as error:  # flash-linear-attention refuses versions of Triton with wrong gradients
        if "upgrade Triton" not in str(error):
            raise
        pytest.skip(str(error))
    for one, other in zip(expected, found, strict=True):
        assert (one - other).norm() <= (2e-2 if dtype == torch.bfloat16 else 3e-3) * one.norm()


@pytest.mark.gpu
@pytest.mark.parametrize("name", SYSTEMS)
def test_attention_backend_names_the_accelerated_kernel(name):
    pytest.importorskip("fla", reason="the extra 'accelerated' is not installed")
    gpu = resolve(GPU)
    spec = task()
    network = gpu.place(model(spec, name, width=64).float())
    assert attention_backend(network, batch_for(spec).to(gpu.device), gpu) == "flash_linear_attention"


def is_accelerable(mixer):
    return any(isinstance(part, Accelerable) for part in mixer.modules())


def test_accelerable_systems():
    found = {name for name in NODES if is_accelerable(make(name, causal=first_direction(name)))}
    assert found == set(SYSTEMS)


@pytest.mark.parametrize("name", SYSTEMS)
def test_accelerated_kernels_run_in_half_precision_only(name, monkeypatch):
    calls = []

    def recorded(kernel):
        return lambda *args, **options: calls.append(kernel) or kernel(*args, **options)

    for module, kernel in (("matrix_recurrence", decay_attention), ("rwkv7", corrected_decay_attention)):
        monkeypatch.setattr(f"lra_bench.models.recurrent.{module}.accelerated_{kernel.__name__}", recorded(kernel))
    spec = task()
    batch = batch_for(spec)
    network = model(spec, name).float()
    network(batch)
    with torch.autocast("cpu", torch.bfloat16):
        plain = network(batch).logits
        hardware().place(network)(batch)
        assert not calls
        accelerated = hardware(accelerated=True).place(network)(batch).logits
    count = len(calls)
    assert count and (plain - accelerated).abs().max() <= (1e-2 if name in SMALL_CHUNKS else 0)
    network(batch)
    assert len(calls) == count


def test_features_are_padded_to_tiles_and_the_outputs_cropped():
    received = {}

    def kernel(*, q, k, v, g, beta, scale, initial_state, output_final_state):
        received.update(q=q, v=v, g=g, state=initial_state)
        heads_first = [x.transpose(1, 2).float() for x in (q, k, v, g, beta)]
        o, last = decay_attention(*heads_first[:4], strength=heads_first[4], state=initial_state)
        assert scale == 1.0 and output_final_state
        return o.transpose(1, 2), last

    q, k, v, decay, strength, state = draw("delta", 9, 8, 17, torch.bfloat16)
    with torch.autocast("cpu", torch.bfloat16):
        o, last = accelerated._by_tiles(kernel, state, q=q, k=k, v=v, g=decay, beta=strength)
    assert (
        received["q"].shape == (2, 9, 2, 16)
        and received["v"].shape == (2, 9, 2, 32)
        and received["state"].shape == (2, 2, 16, 32)
    )
    assert received["q"].dtype == torch.bfloat16 and received["g"].dtype == torch.float32
    expected = decay_attention(q, k, v, decay, strength=strength, state=state)
    assert torch.allclose(o, expected[0], atol=1e-5) and torch.allclose(last, expected[1], atol=1e-5)


@pytest.fixture
def gpu(monkeypatch):
    """Simulate a machine with a GPU."""
    monkeypatch.setattr("lra_bench.runtime.hardware.has_cuda", lambda: True)
    monkeypatch.setattr("torch.cuda.get_device_name", lambda: "NVIDIA H200")


@pytest.mark.parametrize(
    ("options", "reason"),
    [
        ({"device": "cpu", "precision": "bf16"}, "needs a CUDA device; leave it out"),
        ({"precision": "fp32"}, r"its kernels need 16-bit precision; set hardware\.precision=bf16"),
        ({}, r"needs flash-linear-attention; install it with .* pip install .*\[accelerated\]'"),
    ],
)
def test_unsupported_hardware_options_raise_user_errors(options, reason, gpu, monkeypatch):
    monkeypatch.setattr("lra_bench.config.validation.find_spec", lambda name: None)
    with pytest.raises(UserError, match=rf"^hardware\.accelerated=true: {reason}$"):
        check_hardware(replace(GPU, **options))


def test_slug_and_hardware_contain_the_option(gpu, monkeypatch):
    assert slug(GPU) == "h200-bf16-accelerated" and slug(replace(GPU, accelerated=False)) == "h200-bf16"
    assert resolve(GPU).accelerated and not resolve(replace(GPU, accelerated=False)).accelerated
