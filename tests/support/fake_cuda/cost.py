"""Estimate the duration of a training step on a GPU from the number of launches, bytes and FLOPs."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from torch import Tensor
from torch._subclasses.fake_tensor import FakeTensorMode

from lra_bench.config.objects import build_task
from lra_bench.config.schema import CellConfig
from lra_bench.contracts import UserError
from lra_bench.profiling.bench import model_at
from lra_bench.profiling.synthetic import spec_at, synthetic_batch
from lra_bench.runtime.hardware import Hardware
from lra_bench.training.loop import forward_backward

from .placement import place, place_batch
from .replacements import DEVICE
from .watch import Watch

LAUNCH_SECONDS = 6e-6
"""Assumed time from one launch to the next if the host is the limit: a PyTorch operator in eager mode."""
BYTES_PER_SECOND = 4.0e12
"""Assumed memory bandwidth: 83 % of the 4.8 TB/s of an H200 (an H100 SXM has 3.35 TB/s)."""
FLOPS_PER_SECOND = {
    "bfloat16": 5e14,  # half of the 989 TFLOP/s of dense tensor-core products (Hopper SXM)
    "float16": 5e14,
    "float32": 4.5e13,  # two thirds of 67 TFLOP/s without tensor cores; TF32 is off
    "float64": 3e13,
    "complex64": 2e13,
    "complex128": 1e13,
}
"""Assumed rates of products by type of their inputs."""
OTHER_FLOPS_PER_SECOND = 1e13


class _Plain:
    """The backward pass without scaling, as ``Optimizer.backward`` in bf16 and fp32."""

    @staticmethod
    def backward(loss: Tensor) -> None:
        loss.backward()


def step_cost(config: CellConfig, length: int, batch_size: int, precision: str = "bf16") -> dict[str, Any]:
    """Estimate the cost of the forward and backward pass, without the optimizer, of full rows of ``length`` tokens.

    Every operator counts as one launch and moves its inputs and outputs once, so the estimate is a lower bound of the
    memory traffic of operators that read them several times. Attention is one kernel forward and one backward.

    Returns:
        ``status``: ``ok``, ``incompatible`` or the name of an exception, with ``reason``. If it is ``ok``:
        ``launches``; ``gigabytes``; ``flops`` by type; ``launch_seconds``; ``work_seconds``, the time of bytes and
        FLOPs; ``seconds``, the larger of the two; ``largest`` result; ``sites`` and ``operators`` with most launches;
        ``waits``; ``risks``; ``depth``.
    """
    spec = build_task(config).spec
    try:
        model = model_at(config, spec, length)
    except UserError as error:
        return {"status": "incompatible", "reason": str(error)}
    hardware = Hardware(DEVICE, precision, 1, False, None, "fake")
    hardware.apply()
    batch = synthetic_batch(spec_at(spec, length), batch_size, length, "cpu")
    mode, watch = FakeTensorMode(allow_non_fake_inputs=True), Watch(detailed=True)
    place(model, mode)
    placed = replace(place_batch(batch, mode), full=True)
    model.train()
    try:
        with mode, watch:
            forward_backward(model, placed, _Plain(), hardware)  # type: ignore[arg-type]
    except Exception as error:
        return {"status": type(error).__name__, "reason": str(error)[:300]}
    launches = sum(watch.launches.values())
    compute = sum(n / FLOPS_PER_SECOND.get(kind, OTHER_FLOPS_PER_SECOND) for kind, n in watch.flops.items())
    work = watch.bytes_moved / BYTES_PER_SECOND + compute
    return {
        "status": "ok",
        "launches": launches,
        "gigabytes": watch.bytes_moved / 1e9,
        "flops": dict(watch.flops),
        "launch_seconds": launches * LAUNCH_SECONDS,
        "work_seconds": work,
        "seconds": max(launches * LAUNCH_SECONDS, work),
        "largest": watch.largest,
        "sites": watch.by_site.most_common(5),
        "operators": watch.launches.most_common(5),
        "waits": dict(watch.waits),
        "risks": sorted(watch.risks),
        "depth": len(getattr(model, "blocks", ())) or None,
    }
