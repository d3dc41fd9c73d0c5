"""Compiled CPU loops of ``scaled_rows``, since torch's operators have a constant cost for every short row."""

from __future__ import annotations

import math
from typing import Any

from lra_bench.data.compiled import arithmetic


@arithmetic
def forwards(rows: Any, out: Any, scales: Any, share: float, eps: float, floor: float, first: int, stop: int) -> None:
    """Write rows (M, D) times their scales to ``out``, and the scales (M,), for the rows ``first`` to ``stop``."""
    for row in range(first, stop):
        squares = 0.0
        for feature in range(rows.shape[1]):
            squares += rows[row, feature] * rows[row, feature]
        scales[row] = 1.0 / math.sqrt(max(share * squares + eps, floor))
        for feature in range(rows.shape[1]):
            out[row, feature] = scales[row] * rows[row, feature]


@arithmetic
def backwards(
    gradient: Any, rows: Any, scales: Any, grad_rows: Any, share: float, eps: float, floor: float, first: int, stop: int
) -> None:
    """Compute the gradients of ``forwards`` with respect to the rows ``first`` to ``stop``."""
    for row in range(first, stop):
        squares, products, scale = 0.0, 0.0, scales[row]
        for feature in range(rows.shape[1]):
            squares += rows[row, feature] * rows[row, feature]
        for feature in range(rows.shape[1]):
            products += gradient[row, feature] * rows[row, feature]
        # The scale of a row at the floor is constant.
        correction = share * scale * scale * products if share * squares + eps > floor else 0.0
        for feature in range(rows.shape[1]):
            grad_rows[row, feature] = scale * (gradient[row, feature] - correction * rows[row, feature])
