"""What a longer length will cost, from how the step grew over the two lengths before; so that it need not be tried."""

from __future__ import annotations

import math
from collections.abc import Sequence

import torch

from lra_bench.records.sections import SpeedPoint

from .scaling import peak_bytes
from .timing import fewest_seconds

STEEPEST = 2.5
"""Time that grew faster is taken for that of a disturbed length; where it is not, a step is tried in vain."""


def too_slow(
    entries: Sequence[SpeedPoint], mode: str, length: int, device: torch.device, limit_seconds: float
) -> str | None:
    """Why ``mode`` at ``length`` would take too long; None to try. Fast steps foretell it: others were disturbed."""
    known = [(entry["length"], entry["p10_seconds"]) for entry in entries if entry["mode"] == mode]
    if (found := _predict(known, length, STEEPEST)) is None:
        return None
    predicted, between = found
    needed = fewest_seconds(predicted, device)
    if needed <= limit_seconds:
        return None
    return (
        f"a step is predicted to take {predicted:.3g} s, from the growth between lengths {between}; "
        f"timing it would take {needed:.0f} s, the limit is {limit_seconds:g} s"
    )


def too_large(entries: Sequence[SpeedPoint], mode: str, length: int, limit_bytes: int | None) -> str | None:
    """Why ``mode`` at ``length`` would not fit into memory; None to try."""
    known = [(entry["length"], peak_bytes(entry)) for entry in entries if entry["mode"] == mode]
    if limit_bytes is None or (found := _predict(known, length)) is None or found[0] <= limit_bytes:
        return None
    predicted, between = found
    return (
        f"a step is predicted to hold {predicted / 1e9:.3g} GB, from the growth between lengths {between}; "
        f"{limit_bytes / 1e9:.3g} GB are to be had (measure.memory_limit_gigabytes)"
    )


def _predict(
    points: Sequence[tuple[int, float | None]], length: int, steepest: float = math.inf
) -> tuple[float, str] | None:
    """The value at ``length`` by the power law through the last two known ones, and their lengths."""
    known = [(at, value) for at, value in points if value][-2:]
    if len(known) < 2:
        return None
    (before, less), (last, more) = known
    power = min(steepest, math.log(more / less) / math.log(last / before))
    return more * (length / last) ** power, f"{before} and {last}"
