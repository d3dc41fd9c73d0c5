"""Growth of time and memory with length: fitted exponents, and predictions for longer lengths."""

from __future__ import annotations

import math
import statistics
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import torch

from .sections import SpeedPoint
from .timing import fewest_seconds

MIN_POINTS = 3
MEMORY_FIELDS = ("peak_allocated_bytes", "peak_resident_growth_bytes")


class Exponent(NamedTuple):
    """The exponent of a power law in the length, with its 95 % confidence interval."""

    exponent: float
    low: float
    high: float


def exponent(lengths: Sequence[float], values: Sequence[float]) -> Exponent | None:
    """Fit the slope of log ``values`` over log ``lengths`` by least squares, with its t-interval.

    Returns None with fewer than three points, or if a value is not positive. The interval is valid if the values follow
    a power law. A constant cost at short lengths violates this and results in a wide interval.
    """
    if len(lengths) < MIN_POINTS or min(values) <= 0 or len(set(lengths)) == 1:
        return None
    from scipy.special import stdtrit

    x, y = [math.log(length) for length in lengths], [math.log(value) for value in values]
    slope, intercept = statistics.linear_regression(x, y)
    residual = sum((b - intercept - slope * a) ** 2 for a, b in zip(x, y, strict=True))
    degrees = len(x) - 2
    half = float(stdtrit(degrees, 0.975)) * math.sqrt(residual / degrees / (len(x) * statistics.pvariance(x)))
    return Exponent(slope, slope - half, slope + half)


def growth(speed: Sequence[Mapping[str, Any]]) -> dict[str, dict[str, Any]]:
    """Compute the record's ``growth`` section, by mode, from the entries of its ``speed`` section."""
    found = {}
    for mode in dict.fromkeys(entry["mode"] for entry in speed):
        measured = [entry for entry in speed if entry["mode"] == mode and entry["status"] == "ok"]
        lengths = [entry["length"] for entry in measured]
        times = exponent(lengths, [entry["median_seconds"] for entry in measured])
        known = {entry["length"]: peak for entry in measured if (peak := peak_bytes(entry))}
        memory = exponent([*known], [*known.values()])
        found[mode] = {**fields("time", times), **fields("memory", memory), "lengths": lengths}
    return found


def peak_bytes(entry: Mapping[str, Any]) -> int | None:
    """Return the peak memory of a speed entry: allocated bytes on CUDA, otherwise resident growth; None if unknown."""
    return next((entry[field] for field in MEMORY_FIELDS if entry.get(field) is not None), None)


def fields(quantity: str, fit: Exponent | None) -> dict[str, float | None]:
    """Return an exponent and its interval as the record's fields of ``quantity``, None without a fit."""
    return {f"{quantity}_{name}": fit and getattr(fit, name) for name in Exponent._fields}


MAX_TIME_EXPONENT = 2.5
"""Upper bound on the exponent with which times are predicted; a higher one is attributed to a disturbed measurement."""


def too_slow(
    entries: Sequence[SpeedPoint], mode: str, length: int, device: torch.device, limit_seconds: float
) -> str | None:
    """Return the reason if ``mode`` at ``length`` is predicted to take too long, otherwise None.

    The prediction uses the 10th percentile of step times, which disturbances of the machine affect least.
    """
    known = [(entry["length"], entry["p10_seconds"]) for entry in entries if entry["mode"] == mode]
    if (prediction := _predict(known, length, MAX_TIME_EXPONENT)) is None:
        return None
    predicted, between = prediction
    needed = fewest_seconds(predicted, device)
    if needed <= limit_seconds:
        return None
    return (
        f"a step is predicted to take {predicted:.3g} s, from the growth between lengths {between}; "
        f"timing it would take {needed:.0f} s, the limit is {limit_seconds:g} s"
    )


def too_large(entries: Sequence[SpeedPoint], mode: str, length: int, limit_bytes: int | None) -> str | None:
    """Return the reason if ``mode`` at ``length`` is predicted not to fit into memory, otherwise None."""
    known = [(entry["length"], peak_bytes(entry)) for entry in entries if entry["mode"] == mode]
    if limit_bytes is None or (prediction := _predict(known, length)) is None or prediction[0] <= limit_bytes:
        return None
    predicted, between = prediction
    return (
        f"a step is predicted to need {predicted / 1e9:.3g} GB, from the growth between lengths {between}; "
        f"{limit_bytes / 1e9:.3g} GB are available (measure.memory_limit_gigabytes)"
    )


def _predict(
    points: Sequence[tuple[int, float | None]], length: int, max_exponent: float = math.inf
) -> tuple[float, str] | None:
    """Extrapolate to ``length`` by the power law through the last two known points; also return their two lengths.

    Returns None with fewer than two known points.
    """
    known = [(at, value) for at, value in points if value][-2:]
    if len(known) < 2:
        return None
    (before, value_before), (last, value_last) = known
    power = min(max_exponent, math.log(value_last / value_before) / math.log(last / before))
    return value_last * (length / last) ** power, f"{before} and {last}"
