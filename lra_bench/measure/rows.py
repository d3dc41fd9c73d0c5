"""Tidy rows of a profile: a model at one length, and a model over all of them, against each baseline."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from lra_bench.records.schema import Growth, SpeedPoint

from .contest import Measured
from .crossing import crossing
from .entry import LARGEST
from .growth import peak_bytes
from .ratios import geometric_mean, ratio
from .speed import spread_of

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
    times = {row["length"]: row["tokens_per_second"] and 1 / row["tokens_per_second"] for row in rows}
    largest = first["batch_policy"] == LARGEST
    peaks = {} if largest else {row["length"]: row["peak_bytes"] for row in rows}
    for key in keys:
        entries = [entry for (name, mode, _), entry in baselines.items() if (name, mode) == (key, first["mode"])]
        other_times = {
            entry["length"]: entry["tokens_per_second"] and 1 / entry["tokens_per_second"] for entry in entries
        }
        other_peaks = {entry["length"]: peak_bytes(entry) for entry in entries}
        summary |= {
            f"speed_ratio_{key}": geometric_mean(row[f"speed_ratio_{key}"] for row in rows),
            f"memory_ratio_{key}": geometric_mean(row[f"memory_ratio_{key}"] for row in rows),
            f"time_crossing_{key}": crossing(times, other_times).as_dict(),
            f"memory_crossing_{key}": crossing(peaks, other_peaks).as_dict(),
        }
    return summary
