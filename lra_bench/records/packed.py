"""Packed records: those of a results folder in one file, and their tables in one file each, as boards are stored.

``records.jsonl`` contains a record per line. Each table of a record is a row group of a Parquet file whose name
contains a digest of its content: the artifact ``curves-0a1b2c3d.parquet#7`` is row group 7 of that file. The path of a
packed record is that of ``records.jsonl`` followed by the path of the cell.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from contextlib import suppress
from functools import lru_cache
from pathlib import Path
from typing import TYPE_CHECKING

from lra_bench.contracts import UserError
from lra_bench.runtime.files import read_whole

from .key import CellKey

if TYPE_CHECKING:
    from .schema import Record

RECORDS = "records.jsonl"
LARGEST_BYTES = 512 * 2**20

MOST_BROKEN = 10
"""Maximum number of paths of broken lines; the last one is that of all further lines, so that they are one message."""


def packed(root: Path, follow_links: bool = True) -> Mapping[Path, bytes]:
    """Return the JSON of each packed record of a results folder by its path.

    The path of a line that is not a record, or of a cell that an earlier line contains, ends in its number, see
    ``MOST_BROKEN``. Raises ``UserError`` if the file cannot be read or is larger than ``LARGEST_BYTES``.
    """
    file = root / RECORDS
    try:
        return _lines(file, follow_links, file.stat().st_mtime_ns) if file.is_file() else {}
    except OSError as error:
        raise UserError(f"{file}: cannot be read ({error.strerror or error})") from error


@lru_cache(maxsize=16)
def _lines(file: Path, follow_links: bool, changed_at: int) -> Mapping[Path, bytes]:
    found: dict[Path, bytes] = {}
    broken: list[tuple[str, bytes]] = []
    for number, line in enumerate(read_whole(file, LARGEST_BYTES, follow_links).splitlines(), 1):
        path = None
        with suppress(ValueError, TypeError, KeyError, RecursionError, UserError):
            path = file / CellKey(**json.loads(line)["key"]).file("json")
        if path is None or path in found:
            broken.append((f"line {number}", line))
        else:
            found[path] = line
    if len(broken) > MOST_BROKEN:
        name, line = broken[MOST_BROKEN - 1]
        broken[MOST_BROKEN - 1 :] = [(f"{name} and {len(broken) - MOST_BROKEN:,} others", line)]
    found.update((file / name, line) for name, line in broken)
    return found


def folder_of(path: Path) -> Path | None:
    """Return the results folder that contains a packed record, None if ``path`` is not that of a packed record."""
    return next((parent.parent for parent in path.parents if parent.name == RECORDS), None)


def table_file(record: Record, name: str) -> tuple[Path, int | None]:
    """Return the file of a table of a loaded record, and the row group of a packed one."""
    assert record.path is not None
    file, _, group = record.artifacts[name].partition("#")
    if not group:
        return record.path.with_name(file), None
    return (folder_of(record.path) or record.path.parent) / file, int(group)


def digest(content: bytes) -> str:
    """Return the digest of the content of a table that is part of its file name."""
    return hashlib.sha256(content).hexdigest()[:8]
