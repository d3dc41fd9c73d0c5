"""The fastest matrix product of a device, which no step can be much faster than: measured, never from a data sheet."""

from __future__ import annotations

import statistics

import torch

from lra_bench.runtime.hardware import Hardware

from .timing import block, collector_off

SIDES = {"cpu": (512, 1024, 2048), "cuda": (4096, 8192, 16384)}
SECONDS = 0.5
FEWEST = 3
TYPES = {"bf16": torch.bfloat16, "fp16": torch.float16}


def peak_matmul_flops(hardware: Hardware, seconds: float = SECONDS) -> float:
    """FLOPs per second of the fastest product of two square matrices, in the precision and threads of ``hardware``.

    Of three sizes the best one, each by the median of at least ``seconds`` of products. Set the threads and the
    precision of matrix products by ``hardware.apply`` before.
    """
    kind = TYPES.get(hardware.precision, torch.float32)
    with torch.inference_mode(), collector_off():
        return max(_rate(side, kind, hardware.device, seconds) for side in SIDES[hardware.device.type])


def _rate(side: int, kind: torch.dtype, device: torch.device, seconds: float) -> float:
    a, b = (torch.randn(side, side, device=device).to(kind) for _ in range(2))
    out = torch.empty_like(a)

    def product() -> None:
        torch.mm(a, b, out=out)

    block(product, device, FEWEST)
    durations: list[float] = []
    while len(durations) < FEWEST or sum(durations) < seconds:
        durations += block(product, device, FEWEST)
    return 2 * side**3 / statistics.median(durations)
