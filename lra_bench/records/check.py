"""Check a results folder: readable records at the right paths, no duplicate cells, no missing tables or other files."""

from __future__ import annotations

import json
import math
import re
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

from lra_bench.contracts import UserError
from lra_bench.progress import bar
from lra_bench.runtime.findings import Finding

from .board import BOARD, changes
from .key import CellKey
from .packed import RECORDS, digest, packed, table_file
from .profiles import load_profiles
from .schema import Record
from .store import RUNS, content_of, is_misplaced, read
from .tables import array, arrow, first_block

LARGE_BYTES = 64 * 2**20
"""Size above which a file is reported."""

SHOWN = 10
"""Largest number of problems that one finding lists."""


def check_store(root: Path) -> Iterator[Finding]:
    """Yield the findings about a results folder: readability, paths, duplicates, missing tables, other files, sizes."""
    files = sorted(path for path in (root / RUNS).rglob("*") if path.is_file())
    cells = [path for path in files if re.fullmatch(r"seed\d+\.json", path.name)]
    broken: list[str] = []
    try:
        cells.extend(packed(root))
    except UserError as error:
        broken.append(str(error))
    records, versions = _load(cells, broken)
    kinds = ", ".join(f"version {version}: {count:,}" for version, count in sorted(versions.items()))
    yield Finding("records", f"{len(records):,} in {root}{f' ({kinds})' if kinds else ''}")
    yield _finding("readable", broken, "all")
    misplaced = [f"{path} contains {record.key}" for path, record in records if is_misplaced(record, root)]
    yield _finding("paths", misplaced, "all correct")
    places: dict[CellKey, list[str]] = {}
    for path, record in records:
        places.setdefault(record.key, []).append(str(path))
    repeated = [f"{key} in {', '.join(paths)}" for key, paths in places.items() if len(paths) > 1]
    yield _finding("duplicates", repeated, "none")
    records = [(path, _with_tables(record, path)) for path, record in records]
    tables = {table_file(record, name)[0] for _, record in records for name in record.artifacts}
    missing = [f"{path} is missing" for path in sorted(tables) if not path.exists()]
    changed = []
    for path in sorted(tables):
        with suppress(FileNotFoundError):  # another process has replaced or removed it meanwhile
            _, named, expected = path.stem.rpartition("-")
            if named and path.is_file() and digest(path.read_bytes()) != expected:
                changed.append(f"{path} differs from the digest in its name")
    yield _finding("curves and predictions", missing + changed, f"all {len(tables):,} present and unchanged")
    if (root / RECORDS).exists() or (root / BOARD).exists():
        yield _finding("board", list(changes(root)), "all files unchanged")
    yield _finding("scores", list(filter(None, map(_score_fault, records))), "those of the predictions")
    known = {path for path, _ in records} | tables
    left = [path for path in files if path not in known and path.exists()]
    unknown = [str(path) for path in left if not any(str(path) in line for line in broken)]
    yield _finding("other files", unknown, "none", "not part of any record: ")
    invalid: list[str] = []
    valid = load_profiles(root, broken=invalid.append)
    yield _finding("profiles", invalid, f"{len(valid):,} valid")
    own = {*files, *filter(Path.is_file, (root / RECORDS, *tables))}
    sizes: dict[Path, int] = {}
    for path in own:
        with suppress(FileNotFoundError):
            sizes[path] = path.stat().st_size
    large = [f"{path} ({size / 2**20:,.0f} MiB)" for path, size in sizes.items() if size > LARGE_BYTES]
    yield _finding("size", large, f"{sum(sizes.values()) / 2**20:,.1f} MiB in {len(sizes):,} files", "very large: ")


def _load(paths: Sequence[Path], broken: list[str]) -> tuple[list[tuple[Path, Record]], Counter[int]]:
    """Return the valid records with their paths, and their number per schema version; add errors to ``broken``."""
    found, versions = [], Counter[int]()
    with bar(len(paths), "Checking records") as advance:
        for path in paths:
            try:
                content = content_of(path)
                found.append((path, read(content, str(path), path)))
                versions[json.loads(content)["schema_version"]] += 1
            except UserError as error:
                broken.append(str(error))
            advance(1)
    return found, versions


def _with_tables(record: Record, path: Path) -> Record:
    """Read a record again if its tables are missing, in case another process has replaced it."""
    with suppress(UserError):
        if not all(table_file(record, name)[0].exists() for name in record.artifacts):
            return read(content_of(path), str(path), path)
    return record


def _score_fault(loaded: tuple[Path, Record]) -> str:
    """Return how the test score of a record differs from that of its predictions; empty if both agree or are missing.

    The section ``test_targets`` contains the score of predictions if that of ``test`` is of generated sequences.
    """
    path, record = loaded
    stored: Mapping[str, Any] | None = record.metrics.get("test_targets", record.metrics.get("test"))
    try:
        table = arrow(record, "predictions")
    except UserError as error:
        return str(error)
    if stored is None or table is None or not {"loss", "scored"} <= set(table.schema.names):
        return ""
    table = table.filter(first_block(table))
    correct, loss, scored = (
        float(array(table[name]).astype("float64").sum()) for name in ("correct", "loss", "scored")
    )
    found = {"n": scored, "accuracy": correct / scored, "bits_per_character": loss / scored / math.log(2)}
    for name, value in found.items():
        if name in stored and not math.isclose(stored[name], value, rel_tol=1e-5, abs_tol=1e-6):
            return f"{path}: {name} is {stored[name]:.6g}, that of its predictions {value:.6g}"
    return ""


def _finding(what: str, problems: Sequence[str], text_if_ok: str, label: str = "") -> Finding:
    if not problems:
        return Finding(what, text_if_ok, True)
    more = f"; and {len(problems) - SHOWN:,} more" if len(problems) > SHOWN else ""
    return Finding(what, label + "; ".join(problems[:SHOWN]) + more, False)
