"""Ratios of what was measured, and their mean over lengths."""

from __future__ import annotations

import math
from collections.abc import Iterable


def ratio(own: float | None, other: float | None) -> float | None:
    """``own`` over ``other``; None where one of the two is unknown, never infinite."""
    return own / other if own is not None and other else None


def geometric_mean(ratios: Iterable[float | None]) -> float | None:
    """The geometric mean of those that are known, which is the same read either way round; None without any."""
    logarithms = [math.log(one) for one in ratios if one]
    return math.exp(sum(logarithms) / len(logarithms)) if logarithms else None
