"""Slices of scored targets from numbers: one slice per value, or intervals of geometrically increasing width."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
from numpy.typing import NDArray

from lra_bench.contracts import Slicing

BINS = 4


def by_value(values: NDArray[Any], names: Mapping[int, str] | None = None) -> Slicing:
    """Return one slice per value.

    Args:
        values: Integer of each scored target, (T,).
        names: Labels by value, in the order of the slices; values that do not occur have no slice. Default: the values
            themselves, in increasing order.

    Returns:
        The slices.

    Raises:
        ValueError: If a value has no name.
    """
    found = np.unique(values).tolist()
    names = {value: f"{value:,}" for value in found} if names is None else names
    if unnamed := [value for value in found if value not in names]:
        raise ValueError(f"value {unnamed[0]} has no name")
    order = [value for value in names if value in set(found)]
    index = np.zeros(len(values), dtype=np.int64)
    for number, value in enumerate(order):
        index[values == value] = number
    return Slicing([names[value] for value in order], index)


def in_bins(values: NDArray[Any], bins: int = BINS) -> Slicing:
    """Return slices between bounds with equal ratios, from the smallest to the largest value.

    Args:
        values: Positive integer of each scored target, (T,).
        bins: Number of slices. There are fewer if the values are close to each other; slices without a value are left
            out.

    Returns:
        The slices, whose labels contain the first and the last possible value, such as ``8–15``.
    """
    if not len(values):
        return Slicing([], np.zeros(0, dtype=np.int64))
    low, high = int(values.min()), int(values.max())
    if low < 1:
        raise ValueError(f"value {low} is not positive")
    bounds = np.ceil(low * ((high + 1) / low) ** (np.arange(bins + 1) / bins) - 1e-9).astype(np.int64)
    starts = np.unique(bounds[:-1])
    ends = np.append(starts[1:], high + 1) - 1
    kept, index = np.unique(np.searchsorted(starts, values, side="right") - 1, return_inverse=True)
    spans = zip(starts[kept].tolist(), ends[kept].tolist(), strict=True)
    return Slicing([f"{first:,}" if first == last else f"{first:,}–{last:,}" for first, last in spans], index)
