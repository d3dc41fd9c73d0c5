"""Check a CUDA device and print one JSON object per line; ``benchmarks.first_gpu_session`` runs these checks.

Run one of them from the repository: ``python -m benchmarks.gpu_probes systems --systems mamba,s4 [--device cpu]``

``versions`` prints versions of software and properties of the GPU. ``masked_attention`` counts NaN in gradients of
fused attention, and ``hidden_rows`` in outputs for queries whose keys are all masked. ``systems`` trains each system
for three steps and compares its logits with those in single precision on the CPU.
"""

from __future__ import annotations

import argparse
import contextlib
import copy
import json
import platform
import sys
import time
import warnings
from collections.abc import Callable, Iterator
from importlib.metadata import PackageNotFoundError, version
from typing import Any
from unittest import mock

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.nn.attention import SDPBackend, sdpa_kernel

from lra_bench.config.compose import compose
from lra_bench.config.listing import options
from lra_bench.config.objects import build_task
from lra_bench.config.schema import CellConfig
from lra_bench.contracts import Batch, UserError
from lra_bench.models.kernels import devices
from lra_bench.profiling.bench import model_at
from lra_bench.profiling.synthetic import spec_at, synthetic_batch
from lra_bench.runtime.hardware import Hardware, HardwareOptions, first_line, resolve
from lra_bench.training.evaluation import evaluating
from lra_bench.training.loop import after_step, forward_backward, stepped_modules
from lra_bench.training.optimizer import Optimizer
from tests.support.fake_cuda.placement import with_padding

PACKAGES = ("torch", "triton", "numpy", "numba", "flash-linear-attention", "datasets", "hydra-core", "nvidia-ml-py")
BACKENDS = {
    "flash": SDPBackend.FLASH_ATTENTION,
    "memory_efficient": SDPBackend.EFFICIENT_ATTENTION,
    "cudnn": SDPBackend.CUDNN_ATTENTION,
    "math": SDPBackend.MATH,
}
STEPS = 3
BATCH_SIZE = 4


def versions(_: argparse.Namespace) -> Iterator[dict[str, Any]]:
    """Yield the versions of packages and, if there is a GPU, its name, memory and libraries."""
    found: dict[str, Any] = {"python": platform.python_version()}
    for package in PACKAGES:
        try:
            found[package] = version(package)
        except PackageNotFoundError:
            found[package] = None
    if torch.cuda.is_available():
        properties = torch.cuda.get_device_properties(0)
        found |= {
            "gpu": properties.name,
            "memory_bytes": properties.total_memory,
            "capability": f"{properties.major}.{properties.minor}",
            "cuda": torch.version.cuda,
            "cudnn": torch.backends.cudnn.version(),
        }
    yield found


def masked_attention(asked: argparse.Namespace) -> Iterator[dict[str, Any]]:
    """Yield the number of NaN in the gradients of the queries for each back-end, with scores far below zero.

    A fault of cuDNN's attention was reported for masks in 16 bits if the number of keys is 64 modulo 128 and the
    logarithm of a row's sum of exponentials is below −88.7 (pytorch issue 196678).
    """
    torch.manual_seed(0)
    kind = torch.float32 if asked.device == "cpu" else torch.bfloat16
    q, k, v = (torch.randn(2, 2, 192, 64, device=asked.device, dtype=kind) for _ in range(3))
    k = k + 12.0
    q = (q - 12.0).requires_grad_()
    mask = torch.ones(2, 1, 1, 192, dtype=torch.bool, device=asked.device)
    mask[1, ..., 150:] = False
    for name, run in _attention_calls(q, k, v, mask):
        yield {"backend": name, **_nan_counts(run, q)}


def hidden_rows(asked: argparse.Namespace) -> Iterator[dict[str, Any]]:
    """Yield the number of NaN in outputs and gradients for each back-end, with queries whose keys are all masked."""
    torch.manual_seed(0)
    kind = torch.float32 if asked.device == "cpu" else torch.bfloat16
    q, k, v = (torch.randn(2, 2, 128, 64, device=asked.device, dtype=kind) for _ in range(3))
    q.requires_grad_()
    mask = torch.ones(2, 1, 128, 128, dtype=torch.bool, device=asked.device)
    mask[1, :, 100:] = False
    for name, run in _attention_calls(q, k, v, mask):
        yield {"backend": name, **_nan_counts(run, q)}


def _attention_calls(q: Tensor, k: Tensor, v: Tensor, mask: Tensor) -> Iterator[tuple[str, Callable[[], Tensor]]]:
    """Yield names and calls of attention.

    The back-end is selected by torch among all (``default``) or among those that cells may use (``cells``), or given.
    """

    def call(backends: list[SDPBackend] | None) -> Tensor:
        with contextlib.nullcontext() if backends is None else sdpa_kernel(backends):
            return F.scaled_dot_product_attention(q, k, v, attn_mask=mask)

    yield "default", lambda: call(None)
    yield "cells", lambda: call([backend for backend in BACKENDS.values() if backend != SDPBackend.CUDNN_ATTENTION])
    for name, backend in BACKENDS.items():
        yield name, lambda backend=backend: call([backend])  # type: ignore[misc]


def _nan_counts(run: Callable[[], Tensor], q: Tensor) -> dict[str, Any]:
    """Run a call and its backward pass; return the number of NaN in its outputs and in the gradient of q."""
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            o = run()
            (gradient,) = torch.autograd.grad(o.float().square().sum(), q)
    except RuntimeError as error:  # the back-end does not support the call
        return {"status": "refused", "reason": str(error).splitlines()[0][:200]}
    return {"status": "ok", "nan_outputs": int(o.isnan().sum()), "nan_gradients": int(gradient.isnan().sum())}


def systems(asked: argparse.Namespace) -> Iterator[dict[str, Any]]:
    """Yield the results of three training steps on padded rows for each system, and the differences of its logits.

    ``waits`` is the number of synchronisations with the GPU in the last step. ``relative_difference`` is the largest
    difference of the logits after training from those in single precision on the CPU, divided by the largest of these,
    for the given precision and for ``fp32`` on the same device.
    """
    hardware = resolve(HardwareOptions(device=asked.device, precision=asked.precision, threads=asked.threads))
    hardware.apply()
    cpu_types = (*devices.CPU_TYPES, "cuda") if asked.form == "cpu" else devices.CPU_TYPES
    with mock.patch.object(devices, "CPU_TYPES", cpu_types):
        for name in asked.systems.split(",") if asked.systems else [row["name"] for row in options("models")]:
            started = time.perf_counter()
            print(json.dumps({"started": name}), flush=True)
            overrides = [f"task={asked.task}", f"protocol={asked.protocol}", f"model={name}", "tracker=none"]
            try:
                found = system_steps(compose(overrides).config, hardware, asked.length)
            except UserError as error:
                found = {"status": "incompatible", "reason": str(error)}
            except Exception as error:
                found = {"status": "failed", "reason": f"{type(error).__name__}: {first_line(error)}"[:300]}
            yield {"system": name, **found, "seconds": round(time.perf_counter() - started, 2)}


def system_steps(config: CellConfig, hardware: Hardware, length: int) -> dict[str, Any]:
    """Train a system for ``STEPS`` steps on random padded rows and compare its logits with those on the CPU."""
    spec = spec_at(build_task(config).spec, length)
    torch.manual_seed(config.seed)
    model = model_at(config, spec, length)
    batch = with_padding(synthetic_batch(spec, BATCH_SIZE, length, "cpu", config.seed))
    hardware.place(model)
    on_gpu = hardware.device.type == "cuda"
    if on_gpu:
        torch.cuda.reset_peak_memory_stats()
    optimizer, stepped = Optimizer(model, config.train, hardware), stepped_modules(model)
    memory, seconds, waits = None, [], 0
    model.train()
    for step in range(STEPS):
        hardware.synchronize()
        began = time.perf_counter()
        with counted_waits(on_gpu) as warned:
            loss, memory, statistics = forward_backward(model, batch, optimizer, hardware, memory)
            norm = optimizer.step(step)
            after_step(stepped, step, statistics)
        hardware.synchronize()
        seconds.append(time.perf_counter() - began)
        waits = len(warned)
    finite = bool(loss.isfinite()) and bool(norm.isfinite())
    found: dict[str, Any] = {
        "status": "ok" if finite else "not finite",
        "loss": float(loss),
        "gradient_norm": float(norm),
        "waits": waits if on_gpu else None,
        "milliseconds": round(1000 * sorted(seconds)[len(seconds) // 2], 2),
        "peak_bytes": torch.cuda.max_memory_allocated() if on_gpu else None,
    }
    exact = logits_of(copy.deepcopy(model).to("cpu"), batch, contextlib.nullcontext())
    scale = float(exact.abs().max()) or 1.0
    for name, context in ((hardware.precision, hardware.autocast()), ("fp32", contextlib.nullcontext())):
        difference = logits_of(model, batch.to(hardware.device), context).float().cpu() - exact
        found.setdefault("relative_difference", {})[name] = float(difference.abs().max()) / scale
    return found


def logits_of(model: nn.Module, batch: Batch, context: contextlib.AbstractContextManager[Any]) -> Tensor:
    """Return the logits in evaluation mode, without those of padding.

    The seed is fixed, because some systems sample in evaluation.
    """
    torch.manual_seed(0)
    with evaluating(model), context:
        logits: Tensor = model(batch).logits
    if logits.dim() == 3:  # one row of logits per token
        places = torch.arange(logits.shape[1], device=logits.device)
        logits = logits[places < batch.lengths.to(logits.device)[:, None]]
    return logits.float()


@contextlib.contextmanager
def counted_waits(on_gpu: bool) -> Iterator[list[warnings.WarningMessage]]:
    """Record torch's warnings about operations that synchronise with the GPU; an empty list on a CPU."""
    if not on_gpu:
        yield []
        return
    torch.cuda.set_sync_debug_mode("warn")
    try:
        with warnings.catch_warnings(record=True) as warned:
            warnings.simplefilter("always")
            yield warned
    finally:
        torch.cuda.set_sync_debug_mode("default")


PROBES: dict[str, Callable[[argparse.Namespace], Iterator[dict[str, Any]]]] = {
    "versions": versions,
    "masked_attention": masked_attention,
    "hidden_rows": hidden_rows,
    "systems": systems,
}


def main() -> int:
    """Run one probe and print its results."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("probe", choices=PROBES)
    parser.add_argument("--device", choices=("cuda", "cpu"), default="cuda")
    parser.add_argument("--precision", default="auto")
    parser.add_argument("--systems", default="", help="names with commas; default: all")
    parser.add_argument("--task", default="listops")
    parser.add_argument("--protocol", default="small")
    parser.add_argument("--length", type=int, default=512)
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--form", choices=("gpu", "cpu"), default="gpu", help="form of kernels that have two")
    asked = parser.parse_args()
    for found in PROBES[asked.probe](asked):
        print(json.dumps(found), flush=True)
    return 0


if __name__ == "__main__":
    sys.exit(main())
