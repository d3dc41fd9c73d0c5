"""Stored profiles of several systems that were timed alternately: speed, memory, growth, and the costs of cells."""

from __future__ import annotations

import json
import secrets
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, TypedDict

from lra_bench.contracts import UserError
from lra_bench.progress import say
from lra_bench.runtime.files import read_whole, replacing, why
from lra_bench.runtime.redaction import shareable

from .machines import machine_at
from .schema import Record
from .sections import ProfiledCosts
from .values import check, checked_json, plain

PROFILES = "profiles"
VERSION = 1
MODE = "train"
LARGEST_BYTES = 8 * 2**20


class TimedRow(TypedDict, total=False):
    """The median time and peak memory of a step, which rows of failed steps lack, and the key of a baseline."""

    median_seconds: float | None
    peak_bytes: float | None
    baseline: str | None


class ProfileRow(TimedRow):
    """The fields of a row that tables read: one system, batch, mode and length; further fields are allowed.

    ``hash`` identifies the cell that the system was profiled for. Ratios are relative to the baseline ``default``, the
    Transformer with torch's default attention kernel ``default_backend``.
    """

    variant: str
    hash: str
    mode: str
    length: int
    batch_size: int
    batch_policy: str
    status: str
    default_backend: str | None
    speed_ratio_default: float | None
    spread_of_speed_ratio_default: float | None
    memory_ratio_default: float | None


class ProfileSummary(TypedDict):
    """The fields of a summary over lengths that tables read; further fields are allowed."""

    variant: str
    hash: str
    mode: str
    batch_policy: str
    time_exponent: float | None
    time_low: float | None
    time_high: float | None
    lengths: list[int]


class _Content(TypedDict):
    version: int
    measured_at: str
    task: str
    protocol: str
    hardware: str
    ceiling_flops_per_second: float | None
    rows: list[ProfileRow]
    summaries: list[ProfileSummary]


@dataclass(frozen=True)
class StoredProfile:
    """A profile that was read from a results folder.

    Attributes:
        path: The file.
        measured_at: Start of the profile, in ISO 8601.
        task: Name of the task.
        protocol: Name of the protocol.
        machine: Name of the machine, as ``Record.machine`` without the name of a board.
        rows: One row per system, batch, mode and length.
        summaries: One row per system, batch policy and mode.
    """

    path: Path
    measured_at: str
    task: str
    protocol: str
    machine: str
    rows: Sequence[ProfileRow] = field(repr=False)
    summaries: Sequence[ProfileSummary] = field(repr=False)


def write_profile(profile: Mapping[str, Any], root: Path) -> Path:
    """Write a profile below ``root`` and return its path. Raises ``UserError`` if the folder cannot be written.

    ``profile`` contains the fields of ``profiling.comparison.run.Profile``. Secrets and local paths are redacted.
    """
    now = datetime.now(UTC)
    name = f"{profile['protocol']}-{profile['task']}-{now:%Y%m%dT%H%M%S}-{secrets.token_hex(2)}.json"
    path = root / PROFILES / profile["hardware"] / name
    content = {"version": VERSION, "measured_at": now.isoformat(timespec="seconds"), **shareable(plain(profile))}
    try:
        with replacing(path) as temporary:
            temporary.write_text(json.dumps(content, indent=1, allow_nan=False) + "\n", encoding="utf-8")
    except OSError as error:
        raise UserError(f"--results {root}: {why(error)}; choose another folder with --results") from error
    return path


def load_profiles(
    root: Path, records: Sequence[Record] = (), broken: Callable[[str], None] = say
) -> list[StoredProfile]:
    """Load the profiles of a results folder, oldest first.

    Machines are named by ``records``, those of the same folder. ``broken`` is called with the error message of each
    file that is not a valid profile.
    """
    found = []
    for path in sorted((root / PROFILES).glob("*/*.json")):
        try:
            raw = checked_json(read_whole(path, LARGEST_BYTES))
            check(raw, _Content)
        except OSError as error:
            broken(f"{path}: {why(error)}; left out")
            continue
        except (ValueError, UserError) as error:
            broken(f"{path}: is not a profile ({str(error).removeprefix('record: ')}); left out")
            continue
        if raw["version"] > VERSION:
            newer = f"has version {raw['version']}, this lra-bench reads up to {VERSION}; upgrade lra-bench"
            broken(f"{path}: {newer}; left out")
            continue
        machine = machine_at(raw["hardware"], raw["ceiling_flops_per_second"], records)
        names = ("measured_at", "task", "protocol", "rows", "summaries")
        found.append(StoredProfile(path=path, machine=machine, **{name: raw[name] for name in names}))
    return sorted(found, key=lambda profile: (profile.measured_at, profile.path))


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
