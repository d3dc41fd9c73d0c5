"""Tidy rows of a profile: a model at one length, and a model over all of them, against each baseline."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

from lra_bench.records.schema import Growth, SpeedPoint

from .contest import Measured
from .crossing import crossing
from .entry import LARGEST
from .growth import peak_bytes
from .ratios import geometric_mean, ratio
from .speed import spread_of

BEYOND = ("out_of_memory", "timeout")

Baselines = Mapping[tuple[str, str, int], SpeedPoint]
"""Entries of exact attention by key of the baseline, mode and length."""


def row_of(one: Measured, keys: Iterable[str], baselines: Baselines) -> dict[str, Any]:
    """One model at one length: its speed entry, the spread between rounds, and ratios against each baseline."""
    entry, entrant = one.entry, one.entrant
    seconds = entry["median_seconds"]
    row: dict[str, Any] = {
        "variant": entrant.name,
        "model": entrant.model,
        "baseline": entrant.baseline,
        **entry,
        "steps_per_second": None if seconds is None else 1 / seconds,
        "peak_bytes": peak_bytes(entry),
        "round_medians_seconds": one.round_medians,
        "spread_of_rounds": spread_of(one.round_medians),
        "batch_stopped_by": one.stopped_by,
    }
    for key in keys:
        other = baselines.get((key, entry["mode"], entry["length"]))
        # Without the name of what ran, a ratio would say nothing.
        named = other is not None and other["attention_backend"] is not None
        backend = other["attention_backend"] if other is not None else None
        row[f"{key}_backend"] = backend
        row[f"{key}_status"] = other["status"] if other is not None else None
        known = other if named else None
        weighed = known if known is not None and known["batch_size"] == entry["batch_size"] else None
        row[f"speed_ratio_{key}"] = ratio(entry["tokens_per_second"], known and known["tokens_per_second"])
        row[f"memory_ratio_{key}"] = ratio(row["peak_bytes"], weighed and peak_bytes(weighed))
    return row


def summary_of(
    rows: Sequence[Mapping[str, Any]], slopes: Mapping[str, Any], keys: Iterable[str], baselines: Baselines
) -> dict[str, Any]:
    """One model over all lengths: growth, geometric means of ratios, and from where on it costs less."""
    first = rows[0]
    summary: dict[str, Any] = {
        **{name: first[name] for name in ("variant", "model", "baseline", "mode", "batch_policy")},
        **(slopes or dict.fromkeys(Growth.__annotations__)),
    }
    largest = first["batch_policy"] == LARGEST
    own_times, own_peaks = _costs(rows, _seconds_per_token), _costs(rows, _peak)
    for key in keys:
        entries = [
            entry
            for (name, mode, _), entry in baselines.items()
            if (name, mode) == (key, first["mode"]) and (entry["status"] != "ok" or entry["attention_backend"])
        ]
        times, peaks = _costs(entries, _seconds_per_token), {} if largest else _costs(entries, _peak)
        summary |= {
            f"speed_ratio_{key}": geometric_mean(row[f"speed_ratio_{key}"] for row in rows),
            f"memory_ratio_{key}": geometric_mean(row[f"memory_ratio_{key}"] for row in rows),
            f"time_crossing_{key}": crossing(own_times, times).as_dict(),
            f"memory_crossing_{key}": crossing(own_peaks, peaks).as_dict(),
        }
    return summary


def _costs(
    entries: Sequence[Mapping[str, Any]], cost: Callable[[Mapping[str, Any]], float | None]
) -> dict[int, float | None]:
    """What a step costs by length, None where it exceeds what is to be had; lengths not known stay out.

    An error says nothing about cost, and neither does a peak that could not be measured.
    """
    known = {entry["length"]: cost(entry) for entry in entries if entry["status"] == "ok"}
    beyond = {entry["length"]: None for entry in entries if entry["status"] in BEYOND}
    return {**beyond, **{length: value for length, value in known.items() if value is not None}}


def _seconds_per_token(entry: Mapping[str, Any]) -> float | None:
    return 1 / entry["tokens_per_second"] if entry["tokens_per_second"] else None


def _peak(entry: Mapping[str, Any]) -> float | None:
    return peak_bytes(entry)
