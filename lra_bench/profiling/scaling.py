"""How time and memory grow with length: fitted exponents, and what a longer length will cost."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch

from lra_bench.records.sections import SpeedPoint

from .timing import fewest_seconds

FEWEST_POINTS = 3
MEMORY_FIELDS = ("peak_allocated_bytes", "peak_resident_growth_bytes")


@dataclass(frozen=True)
class Exponent:
    """The exponent of a power law in the length, with its 95 % interval."""

    exponent: float
    low: float
    high: float


def exponent(lengths: Sequence[float], values: Sequence[float]) -> Exponent | None:
    """Slope of log ``values`` over log ``lengths`` by least squares, with the t-interval of the residuals.

    None with fewer than three points, or where a value has no logarithm. The interval holds if the power law does:
    a constant share at short lengths bends the line, and shows as a wide interval.
    """
    if len(lengths) < FEWEST_POINTS or min(values) <= 0:
        return None
    from scipy.special import stdtrit

    x, y = [math.log(length) for length in lengths], [math.log(value) for value in values]
    n, x_mean, y_mean = len(x), sum(x) / len(x), sum(y) / len(y)
    spread = sum((one - x_mean) ** 2 for one in x)
    if spread == 0:
        return None
    slope = sum((a - x_mean) * (b - y_mean) for a, b in zip(x, y, strict=True)) / spread
    residual = sum((b - y_mean - slope * (a - x_mean)) ** 2 for a, b in zip(x, y, strict=True))
    half = float(stdtrit(n - 2, 0.975)) * math.sqrt(residual / (n - 2) / spread)
    return Exponent(slope, slope - half, slope + half)


def growth(speed: Sequence[Mapping[str, Any]]) -> dict[str, dict[str, Any]]:
    """The record's ``growth`` section from the entries of its ``speed`` section, by mode."""
    modes = dict.fromkeys(entry["mode"] for entry in speed)
    return {mode: _growth([entry for entry in speed if entry["mode"] == mode]) for mode in modes}


def _growth(entries: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    measured = [entry for entry in entries if entry["status"] == "ok"]
    lengths = [entry["length"] for entry in measured]
    times = exponent(lengths, [entry["median_seconds"] for entry in measured])
    known = [(entry["length"], peak) for entry in measured if (peak := peak_bytes(entry))]
    memory = exponent([length for length, _ in known], [peak for _, peak in known])
    return {**_named("time", times), **_named("memory", memory), "lengths": lengths}


def peak_bytes(entry: Mapping[str, Any]) -> int | None:
    """The peak memory of a speed entry, of whichever kind its device has; None where unknown."""
    return next((entry[field] for field in MEMORY_FIELDS if entry.get(field) is not None), None)


def _named(quantity: str, found: Exponent | None) -> dict[str, float | None]:
    return {
        f"{quantity}_exponent": found.exponent if found else None,
        f"{quantity}_low": found.low if found else None,
        f"{quantity}_high": found.high if found else None,
    }


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
