"""Stored profiles: speed, memory and growth of several systems that were timed alternately."""

from __future__ import annotations

import json
import re
import secrets
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
from .values import check, checked_json, plain

PROFILES = "profiles"
VERSION = 1
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
            found.append(_load(path, records))
        except UserError as error:
            broken(f"{error}; left out")
    return sorted(found, key=lambda profile: (profile.measured_at, profile.path))


def _load(path: Path, records: Iterable[Record]) -> StoredProfile:
    try:
        raw = checked_json(read_whole(path, LARGEST_BYTES))
        check(raw, _Content)
    except OSError as error:
        raise UserError(f"{path}: {why(error)}") from error
    except (ValueError, UserError) as error:
        problem = re.sub("^record: ", "", str(error))
        raise UserError(f"{path}: is not a profile ({problem})") from error
    if raw["version"] > VERSION:
        raise UserError(
            f"{path}: has version {raw['version']}, this lra-bench reads up to {VERSION}; upgrade lra-bench"
        )
    return StoredProfile(
        path=path,
        measured_at=raw["measured_at"],
        task=raw["task"],
        protocol=raw["protocol"],
        machine=machine_at(raw["hardware"], raw["ceiling_flops_per_second"], records),
        rows=raw["rows"],
        summaries=raw["summaries"],
    )
