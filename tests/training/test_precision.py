"""Training in every precision, exact resumption, and rejection of nondeterministic operations."""

import math
from dataclasses import replace

import pytest
import torch
from safetensors.torch import save_model
from torch import nn

from lra_bench.config.validation import check_hardware
from lra_bench.contracts import Output, UserError
from lra_bench.runtime.hardware import Hardware, HardwareOptions, first_line, resolve, slug
from lra_bench.training import loop
from lra_bench.training.checkpoint import Checkpoints
from lra_bench.training.optimizer import Optimizer
from tests.support.golden_losses import golden_run, stored_run
from tests.support.mixer_cases import NODES
from tests.support.model_cases import initial_model, task
from tests.training.test_loop import RECIPE, SPEC, Toy, config, equal, fit, rows, toy, weights

TYPES = {"fp32": torch.float32, "bf16": torch.bfloat16, "fp16": torch.float16}
LARGEST_SCALE = 2.0**16


def machine(precision, device="cpu"):
    return Hardware(torch.device(device), precision, 1, False, None, f"{device}-{precision}")


@pytest.fixture(autouse=True)
def restore_torch_settings():
    yield
    torch.use_deterministic_algorithms(False)
    torch.set_default_dtype(torch.float32)


@pytest.mark.one_in(3)
@pytest.mark.parametrize("model", ["transformer", "performer", "local"])
@pytest.mark.parametrize("precision", ["bf16", "fp16"])
def test_half_precision_losses_are_close_to_full_precision(precision, model):
    """With the same weights and rows, losses are close to those in full precision but not equal."""
    full, half = stored_run(model)[1].losses, golden_run(model, hardware=machine(precision)).losses
    assert half == pytest.approx(full, rel=0.02)
    assert half != pytest.approx(full, rel=1e-5)


@pytest.mark.parametrize("precision", TYPES)
def test_matrix_products_have_the_requested_type(tmp_path, precision):
    seen = set()

    class Watched(Toy):
        def forward(self, batch, memory=None):
            output = super().forward(batch, memory)
            seen.add(output.logits.dtype)
            assert {parameter.dtype for parameter in self.parameters()} == {torch.float32}
            return output

    torch.manual_seed(0)
    parts = {"train": rows(), "validation": rows(16, 1)}
    loop.train(Watched(), parts, SPEC, config(), machine(precision), Checkpoints(tmp_path, math.inf), lambda *_: None)
    assert seen == {TYPES[precision]}


@pytest.mark.parametrize("precision", TYPES)
def test_a_resumed_run_equals_the_uninterrupted_one_in_every_precision(tmp_path, precision):
    hardware, uninterrupted, resumed = machine(precision), toy(), toy(seed=3)
    fit(uninterrupted, tmp_path / "whole", hardware=hardware)
    with pytest.raises(KeyboardInterrupt):
        fit(toy(), tmp_path / "cut", stop_after=8, every_seconds=0, hardware=hardware)
    fit(resumed, tmp_path / "cut", every_seconds=0, hardware=hardware)
    assert equal(weights(uninterrupted), weights(resumed))


@pytest.mark.one_in(4)
@pytest.mark.parametrize("name", NODES)
def test_weights_have_the_default_type_and_can_be_saved(tmp_path, name):
    """Sharding requires a single type, and safetensors rejects views of other tensors."""
    for dtype in (torch.float32, torch.float64):
        torch.set_default_dtype(dtype)
        model = initial_model(task(), name)
        assert {parameter.dtype for parameter in model.parameters()} == {dtype}
        save_model(model, str(tmp_path / "weights.safetensors"))


def test_overflow_skips_the_step_and_halves_the_scale():
    model = nn.Linear(3, 1)
    optimizer = Optimizer(model, replace(RECIPE, warmup_steps=0), machine("fp16"))
    assert optimizer.scaler.get_scale() == LARGEST_SCALE
    before = weights(model)
    # The largest finite number in half precision is 65,504: the loss is finite, the scaled gradient is not.
    with torch.autocast("cpu", torch.float16):
        loss = model(torch.full((2, 3), 100.0)).float().sum()
    optimizer.backward(loss)
    norm = optimizer.step(0)
    assert math.isfinite(float(loss.detach())) and not math.isfinite(float(norm))
    assert equal(before, weights(model)) and optimizer.scaler.get_scale() == LARGEST_SCALE / 2
    optimizer.backward(model(torch.full((2, 3), 1e-3)).sum())
    assert math.isfinite(float(optimizer.step(1)))
    assert not equal(before, weights(model))


def test_checkpoint_contains_the_loss_scale(tmp_path):
    hardware, model = machine("fp16"), toy()
    optimizer = Optimizer(model, RECIPE, hardware)
    optimizer.backward(model.head.bias.sum())
    optimizer.scaler.update(512.0)
    checkpoints = Checkpoints(tmp_path, 0)
    checkpoints.save(loop.State(), model, optimizer)
    other = Optimizer(model, RECIPE, hardware)
    checkpoints.resume(model, other)
    assert other.scaler.get_scale() == 512.0


@pytest.mark.parametrize("precision", ["fp32", "bf16", "fp16"])
def test_cpu_supports_the_precision_and_slug_contains_it(precision):
    options = HardwareOptions(device="cpu", precision=precision, threads=1)
    assert resolve(options).precision == precision
    assert slug(options).endswith("-1t" if precision == "fp32" else f"-1t-{precision}")


def test_tf32_on_a_cpu_raises_user_error():
    with pytest.raises(UserError, match=r"hardware\.precision=tf32: needs a CUDA device"):
        check_hardware(HardwareOptions(device="cpu", precision="tf32"))


@pytest.mark.gpu
@pytest.mark.parametrize("precision", ["fp32", "tf32", "bf16", "fp16"])
def test_gpu_trains_in_every_precision(precision):
    hardware = resolve(HardwareOptions(device="cuda", precision=precision))
    hardware.apply()
    assert torch.backends.cuda.matmul.allow_tf32 == (precision == "tf32")
    found = golden_run("transformer", hardware=hardware)
    assert len(found.losses) == 20 and all(map(math.isfinite, found.losses))


class Scattering(Toy):
    """A model that calls ``put_`` with duplicate indices, for which torch has no deterministic implementation."""

    def forward(self, batch, memory=None):
        output = super().forward(batch, memory)
        indices = torch.zeros(2, dtype=torch.long)
        put = torch.zeros(3).put_(indices, torch.ones(2))
        return Output(output.logits + 0 * put, output.losses, None, output.statistics)


def test_nondeterministic_operation_is_rejected_by_name(tmp_path):
    options = HardwareOptions(device="cpu", threads=1, deterministic=True)
    hardware = resolve(options)
    assert hardware.slug.endswith("-deterministic")
    hardware.apply()
    parts = {"train": rows(), "validation": rows(16, 1)}
    torch.manual_seed(0)
    with pytest.raises(RuntimeError) as caught:
        loop.train(Scattering(), parts, SPEC, config(), hardware, Checkpoints(tmp_path, math.inf), lambda *_: None)
    assert first_line(caught.value) == (
        "put_ has no deterministic form on this device; set hardware.deterministic=false"
    )
    resolve(replace(options, deterministic=False)).apply()
    loop.train(Scattering(), parts, SPEC, config(), hardware, Checkpoints(tmp_path, math.inf), lambda *_: None)


def test_deterministic_run_sets_cublas_workspace_variable(monkeypatch):
    import os

    monkeypatch.delenv("CUBLAS_WORKSPACE_CONFIG", raising=False)
    resolve(HardwareOptions(device="cpu", deterministic=True)).apply()
    assert os.environ["CUBLAS_WORKSPACE_CONFIG"] == ":4096:8" and torch.are_deterministic_algorithms_enabled()
    monkeypatch.setenv("CUBLAS_WORKSPACE_CONFIG", ":16:8")
    resolve(HardwareOptions(device="cpu", deterministic=True)).apply()
    assert os.environ["CUBLAS_WORKSPACE_CONFIG"] == ":16:8"
