"""Costs of the cells of a results folder, from a profile in which their systems were timed alternately."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence

from .profiles import ProfileRow, StoredProfile
from .schema import Record
from .sections import ProfiledCosts

MODE = "train"


def attach_costs(records: Iterable[Record], profiles: Iterable[StoredProfile]) -> None:
    """Set ``profiled`` of the records of one results folder whose systems were profiled together.

    Of the profiles of a task, protocol and machine, the one that contains the most of the recorded cells is used; if
    several do, the latest that was not interrupted. All ratios are those of training steps at one length: the longest
    at which the most of these cells were timed.
    """
    by_place: dict[tuple[str, str, str], list[Record]] = {}
    for record in records:
        by_place.setdefault((record.key.task, record.key.protocol, record.machine), []).append(record)
    known = list(profiles)
    for place, members in by_place.items():
        fitting = [profile for profile in known if (profile.task, profile.protocol, profile.machine) == place]
        costs = _costs(fitting, {record.key.hash for record in members})
        for record in members:
            record.profiled = costs.get(record.key.hash)


def _costs(profiles: Sequence[StoredProfile], hashes: set[str]) -> Mapping[str, ProfiledCosts]:
    """Return the costs by hash, from the profile that contains the most of ``hashes``."""
    counts = [len(hashes & {row["hash"] for row in profile.rows}) for profile in profiles]
    if not counts or not max(counts):
        return {}
    # An interrupted profile has no summaries.
    complete = [bool(profile.summaries) for profile in profiles]
    *_, chosen = max(zip(counts, complete, range(len(counts)), strict=True))
    profile = profiles[chosen]
    rows = [row for row in _first_batch(profile.rows, MODE) if row["hash"] in hashes]
    ratios = [(row, ratio) for row in rows if (ratio := row["speed_ratio_default"])]
    lengths = Counter(row["length"] for row, _ in ratios)
    if not lengths:
        return {}
    length = max(lengths, key=lambda each: (lengths[each], each))
    # Of the Transformer's two kernels, the first row and summary are those of the default one.
    growth = {
        summary["hash"]: summary
        for summary in reversed(profile.summaries)
        if summary["mode"] == MODE and summary["batch_policy"] == rows[0]["batch_policy"]
    }
    forward: dict[str, float] = {}
    for row in _first_batch(profile.rows, "inference"):
        if row["length"] == length and (seconds := row.get("median_seconds")) is not None:
            forward.setdefault(row["hash"], seconds / row["batch_size"])
    found: dict[str, ProfiledCosts] = {}
    for row, ratio in ratios:
        if row["length"] == length and row["hash"] not in found:
            fit = growth.get(row["hash"])
            found[row["hash"]] = {
                "relative_speed": ratio,
                "spread_of_relative_speed": row["spread_of_speed_ratio_default"],
                "relative_memory": row["memory_ratio_default"],
                "length": length,
                "kernel": row["default_backend"],
                "time_exponent": fit["time_exponent"] if fit else None,
                "time_low": fit["time_low"] if fit else None,
                "time_high": fit["time_high"] if fit else None,
                "growth_lengths": fit["lengths"] if fit else (),
                "inference_seconds": forward.get(row["hash"]),
            }
    return found


def _first_batch(rows: Sequence[ProfileRow], mode: str) -> list[ProfileRow]:
    """Return the rows of a mode with its first batch size and policy in the profile."""
    timed = [row for row in rows if row["mode"] == mode]
    if not timed:
        return []
    policy, size = timed[0]["batch_policy"], timed[0]["batch_size"]
    return [row for row in timed if row["batch_policy"] == policy and (policy != "fixed" or row["batch_size"] == size)]
