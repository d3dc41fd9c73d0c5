"""The routes through flash-linear-attention: equal to our kernels, taken where an option says so."""

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest
import torch
import torch.nn.functional as F

from lra_bench.contracts import Accelerable, UserError
from lra_bench.models.kernels import accelerated
from lra_bench.models.kernels.corrected_decay import corrected_decay_attention
from lra_bench.models.kernels.decay import decay_attention
from lra_bench.profiling.attention_backend import attention_backend
from lra_bench.runtime.hardware import Hardware, HardwareOptions, resolve, slug
from tests.support.mixer_cases import NODES, first_direction, make
from tests.support.model_cases import batch_for, model, task

SYSTEMS = ("delta_net", "gated_delta_net", "gla", "mamba2", "mlstm", "retnet", "rwkv7")
KINDS = ("scalar", "vector", "delta", "corrected")
OURS: tuple[Callable[..., Any], ...] = (decay_attention, corrected_decay_attention)
THEIRS = (accelerated.accelerated_decay_attention, accelerated.accelerated_corrected_decay_attention)
CARD = HardwareOptions(device="cuda", accelerated=True)


def hardware(**options):
    return Hardware(torch.device("cpu"), "fp32", 1, False, None, "cpu", **options)


def draw(kind, n, keys, values, dtype):
    """What a kernel is given, of numbers that are exact in ``dtype`` where it rounds."""
    generator = torch.Generator().manual_seed(n)

    def normal(width):
        return torch.randn(2, 2, n, width, generator=generator)

    def share(*width):
        return torch.rand(2, 2, n, *width, generator=generator)

    q, k, v = normal(keys), F.normalize(normal(keys), dim=-1), normal(values)
    state = torch.randn(2, 2, keys, values, generator=generator)
    if kind == "corrected":
        asked = F.normalize(normal(keys), dim=-1)
        return *(x.to(dtype).float() for x in (q, k, v)), -share(keys), asked, -share(keys) * asked, state
    rows = tuple(x.to(dtype).float() for x in (q, k, v))
    decay = -share(keys) if kind == "vector" else -share()
    return *rows, decay, *((share(),) if kind == "delta" else ()), state


def compute(kind, own, inputs):
    """Outputs and last state, and their gradients by all inputs, by our kernel or the other one."""
    leaves = [x.detach().clone().requires_grad_() for x in inputs]
    *rows, state = leaves
    strength = {"strength": rows.pop()} if kind == "delta" else {}
    o, last = (OURS if own else THEIRS)[kind == "corrected"](*rows, state=state, **strength)
    loss = o.double().sin().sum() + last.double().sin().sum()
    return o, last, *torch.autograd.grad(loss, leaves)


@pytest.mark.gpu
@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize(("n", "keys", "values"), [(5, 24, 40), (100, 8, 17), (1000, 64, 64)])
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_equals_our_kernels_with_gradients(kind, n, keys, values, dtype):
    pytest.importorskip("fla", reason="the extra 'accelerated' is not installed")
    inputs = [x.cuda() for x in draw(kind, n, keys, values, dtype)]
    expected = compute(kind, True, [x.double() for x in inputs])
    with torch.autocast("cuda", dtype):
        found = compute(kind, False, inputs)
    for one, other in zip(expected, found, strict=True):
        assert (one - other).norm() <= (2e-2 if dtype == torch.bfloat16 else 3e-3) * one.norm()


@pytest.mark.gpu
@pytest.mark.parametrize("name", SYSTEMS)
def test_a_system_says_by_which_kernel_it_ran(name):
    pytest.importorskip("fla", reason="the extra 'accelerated' is not installed")
    card = resolve(CARD)
    spec = task()
    network = card.place(model(spec, name, width=64).float())
    assert attention_backend(network, batch_for(spec).to(card.device), card) == "flash_linear_attention"


def knows_the_way(mixer):
    return any(isinstance(part, Accelerable) for part in mixer.modules())


def test_the_systems_that_know_the_way():
    found = {name for name in NODES if knows_the_way(make(name, causal=first_direction(name)))}
    assert found == set(SYSTEMS)


@pytest.mark.parametrize("name", SYSTEMS)
def test_a_system_takes_the_route_in_half_precision_alone(name, monkeypatch):
    taken = []

    def watched(kernel):
        return lambda *args, **options: taken.append(kernel) or kernel(*args, **options)

    for module, kernel in (("matrix_recurrence", decay_attention), ("rwkv7", corrected_decay_attention)):
        monkeypatch.setattr(f"lra_bench.models.recurrent.{module}.accelerated_{kernel.__name__}", watched(kernel))
    spec = task()
    batch = batch_for(spec)
    network = model(spec, name).float()
    network(batch)
    with torch.autocast("cpu", torch.bfloat16):
        plain = network(batch).logits
        hardware().place(network)(batch)
        assert not taken
        accelerated = hardware(accelerated=True).place(network)(batch).logits
    ran = len(taken)
    assert ran and torch.equal(plain, accelerated)
    network(batch)
    assert len(taken) == ran


def test_channels_are_filled_up_to_tiles_and_cut_again():
    seen = {}

    def kernel(*, q, k, v, g, beta, scale, initial_state, output_final_state):
        seen.update(q=q, v=v, g=g, state=initial_state)
        heads_first = [x.transpose(1, 2).float() for x in (q, k, v, g, beta)]
        o, last = decay_attention(*heads_first[:4], strength=heads_first[4], state=initial_state)
        assert scale == 1.0 and output_final_state
        return o.transpose(1, 2), last

    q, k, v, decay, strength, state = draw("delta", 9, 8, 17, torch.bfloat16)
    with torch.autocast("cpu", torch.bfloat16):
        o, last = accelerated._by_tiles(kernel, state, q=q, k=k, v=v, g=decay, beta=strength)
    assert (
        seen["q"].shape == (2, 9, 2, 16) and seen["v"].shape == (2, 9, 2, 32) and seen["state"].shape == (2, 2, 16, 32)
    )
    assert seen["q"].dtype == torch.bfloat16 and seen["g"].dtype == torch.float32
    expected = decay_attention(q, k, v, decay, strength=strength, state=state)
    assert torch.allclose(o, expected[0], atol=1e-5) and torch.allclose(last, expected[1], atol=1e-5)


@pytest.fixture
def card(monkeypatch):
    """A machine that says it has a card."""
    monkeypatch.setattr("lra_bench.runtime.hardware._has_cuda", lambda: True)
    monkeypatch.setattr("torch.cuda.get_device_name", lambda: "NVIDIA H200")


@pytest.mark.parametrize(
    ("options", "reason"),
    [
        ({"device": "cpu", "precision": "bf16"}, "needs a CUDA device; leave it out"),
        ({"precision": "fp32"}, r"its kernels multiply 16 bits; set hardware\.precision=bf16"),
        ({}, r"wants flash-linear-attention; pip install 'lra-bench\[accelerated\]'"),
    ],
)
def test_what_cannot_be_is_refused_in_one_sentence(options, reason, card, monkeypatch):
    monkeypatch.setattr("lra_bench.runtime.hardware.find_spec", lambda name: None)
    for look in (slug, resolve):
        with pytest.raises(UserError, match=rf"^hardware\.accelerated=true: {reason}$"):
            look(replace(CARD, **options))


def test_the_key_and_the_hardware_say_so(card, monkeypatch):
    monkeypatch.setattr("lra_bench.runtime.hardware.find_spec", lambda name: name == "fla" or None)
    assert slug(CARD) == "h200-bf16-accelerated" and slug(replace(CARD, accelerated=False)) == "h200-bf16"
    assert resolve(CARD).accelerated and not resolve(replace(CARD, accelerated=False)).accelerated
