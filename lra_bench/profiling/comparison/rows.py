"""Rows of a profile in tidy format: a model at one length, and a model over all lengths, against each baseline."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

from lra_bench.profiling.scaling import peak_bytes
from lra_bench.profiling.sections import LARGEST, Growth
from lra_bench.profiling.types import Measured

from .crossover import crossover
from .ratios import fast, geometric_mean, ratio, spread_of, undisturbed_ratio

EXCEEDED_LIMIT = ("out_of_memory", "timeout")
"""Statuses of steps that exceed the limits of memory or time."""

Baselines = Mapping[tuple[str, str, int], Measured]
"""Measurements of exact attention by key of the baseline, mode and length."""


def row_of(one: Measured, keys: Iterable[str], baselines: Baselines) -> dict[str, Any]:
    """Return the row of one model at one length: its speed entry, the spread of its times, and ratios per baseline."""
    entry, candidate = one.entry, one.candidate
    seconds = entry["median_seconds"]
    row: dict[str, Any] = {
        "variant": candidate.name,
        "model": candidate.model,
        "hash": candidate.hash,
        "baseline": candidate.baseline,
        **entry,
        "steps_per_second": None if seconds is None else 1 / seconds,
        "peak_bytes": peak_bytes(entry),
        "fast_seconds": fast(one.rounds) if one.rounds else None,
        "round_medians_seconds": one.round_medians,
        "spread_of_seconds": spread_of(one.round_medians),
        "batch_stopped_by": one.stopped_by,
    }
    for key in keys:
        row |= _against(one, baselines.get((key, entry["mode"], entry["length"])), key)
    return row


def _against(one: Measured, other: Measured | None, key: str) -> dict[str, Any]:
    """Return the ratios of ``one`` to exact attention ``other`` at the same length; column names contain ``key``.

    Ratios are None if the attention kernel of ``other`` is unknown, the memory ratio also if batch sizes differ.
    """
    entry, known = one.entry, other.entry if other is not None else None
    has_kernel = other is not None and known is not None and known["attention_backend"] is not None
    rounds = (one.seconds_per_token_by_round, other.seconds_per_token_by_round) if has_kernel and other else ([], [])
    speed_ratio, spread = undisturbed_ratio(*rounds)
    baseline_entry = known if has_kernel and known and known["batch_size"] == entry["batch_size"] else None
    return {
        f"{key}_backend": known and known["attention_backend"],
        f"{key}_status": known and known["status"],
        f"speed_ratio_{key}": speed_ratio,
        f"spread_of_speed_ratio_{key}": spread,
        f"memory_ratio_{key}": ratio(peak_bytes(entry), baseline_entry and peak_bytes(baseline_entry)),
    }


def summary_of(
    rows: Sequence[Mapping[str, Any]], slopes: Mapping[str, Any], keys: Iterable[str], baselines: Baselines
) -> dict[str, Any]:
    """Return the row of one model over all lengths: growth, geometric means of ratios, and efficiency lengths.

    Args:
        rows: The rows of the model by ``row_of``, for one mode.
        slopes: The entry of the mode in the ``growth`` section, empty if there is none.
        keys: The keys of the baselines.
        baselines: The measurements of exact attention.

    Returns:
        The columns by name.
    """
    first = rows[0]
    summary: dict[str, Any] = {
        **{name: first[name] for name in ("variant", "model", "hash", "baseline", "mode", "batch_policy")},
        **(slopes or dict.fromkeys(Growth.__annotations__)),
    }
    largest = first["batch_policy"] == LARGEST
    own_times, own_peaks = _costs(rows, _seconds_per_token), _costs(rows, peak_bytes)
    for key in keys:
        entries = [
            one.entry
            for (name, mode, _), one in baselines.items()
            if (name, mode) == (key, first["mode"]) and (one.entry["status"] != "ok" or one.entry["attention_backend"])
        ]
        times, peaks = _costs(entries, _seconds_per_token), {} if largest else _costs(entries, peak_bytes)
        summary |= {
            f"speed_ratio_{key}": geometric_mean(row[f"speed_ratio_{key}"] for row in rows),
            f"memory_ratio_{key}": geometric_mean(row[f"memory_ratio_{key}"] for row in rows),
            f"time_crossing_{key}": crossover(own_times, times)._asdict(),
            f"memory_crossing_{key}": crossover(own_peaks, peaks)._asdict(),
        }
    return summary


def _costs(
    entries: Sequence[Mapping[str, Any]], cost: Callable[[Mapping[str, Any]], float | None]
) -> dict[int, float | None]:
    """Return the cost of a step by length, None for a step that exceeds the limits of memory or time.

    Lengths at which the cost is unknown are left out: the step failed with an error, or its peak was not measured.
    """
    known = {entry["length"]: cost(entry) for entry in entries if entry["status"] == "ok"}
    exceeded = {entry["length"]: None for entry in entries if entry["status"] in EXCEEDED_LIMIT}
    return {**exceeded, **{length: value for length, value in known.items() if value is not None}}


def _seconds_per_token(entry: Mapping[str, Any]) -> float | None:
    """Return the seconds per token of a speed entry, None if unknown."""
    return 1 / entry["tokens_per_second"] if entry["tokens_per_second"] else None
