"""Measure the matrix-product throughput of a device, a practical upper bound on the throughput of any step."""

from __future__ import annotations

import statistics

import torch

from lra_bench.runtime.hardware import Hardware

from .timing import block, collector_off

SIDES = {"cpu": (512, 1024, 2048), "cuda": (4096, 8192)}
SECONDS = 0.25
ROUNDS = 5
MIN_PRODUCTS = 3
TYPES = {"bf16": torch.bfloat16, "fp16": torch.float16}


def peak_matmul_flops(hardware: Hardware, seconds: float = SECONDS) -> float:
    """Measure the highest FLOPs per second of a product of two square matrices, in the precision of ``hardware``.

    Of several sizes the fastest is measured in ``ROUNDS`` rounds, and the highest rate is returned, because other
    processes can only lower it; each is the median over at least ``seconds`` of products. Call ``hardware.apply``
    before, which sets the number of threads and the precision of matrix products.
    """
    kind = TYPES.get(hardware.precision, torch.float32)
    with torch.inference_mode(), collector_off():
        rates = {side: _rate(side, kind, hardware.device, seconds) for side in SIDES[hardware.device.type]}
        fastest = max(rates, key=lambda side: rates[side])
        again = (_rate(fastest, kind, hardware.device, seconds) for _ in range(ROUNDS - 1))
        return max(rates[fastest], *again)


def _rate(side: int, kind: torch.dtype, device: torch.device, seconds: float) -> float:
    """Return the FLOPs per second of products of two matrices (side, side)."""
    a, b = (torch.randn(side, side, device=device).to(kind) for _ in range(2))
    out = torch.empty_like(a)

    def product() -> None:
        torch.mm(a, b, out=out)

    block(product, device, MIN_PRODUCTS)
    durations: list[float] = []
    while len(durations) < MIN_PRODUCTS or sum(durations) < seconds:
        durations += block(product, device, MIN_PRODUCTS)
    return 2 * side**3 / statistics.median(durations)
