"""Check a results folder: readable records at the right paths, no duplicate cells, no missing tables or other files."""

from __future__ import annotations

import json
import re
from collections import Counter
from collections.abc import Iterator, Sequence
from pathlib import Path

from lra_bench.config.hashing import HASH_VERSION
from lra_bench.contracts import UserError
from lra_bench.progress import bar
from lra_bench.runtime.findings import Finding

from .key import CellKey
from .profiles import check_profiles
from .schema import Record
from .store import RUNS, load
from .upgrades import SCHEMA_VERSION

LARGE_BYTES = 64 * 2**20
"""Size above which a file is reported."""

SHOWN = 10
"""Largest number of problems that one finding lists."""


def check_store(root: Path) -> Iterator[Finding]:
    """Yield the findings about a results folder: readability, paths, duplicates, missing tables, other files, sizes."""
    folder = root / RUNS
    files = sorted(path for path in folder.rglob("*") if path.is_file())
    records, broken, versions = _load(path for path in files if re.fullmatch(r"seed\d+\.json", path.name))
    kinds = ", ".join(f"version {version}: {count:,}" for version, count in sorted(versions.items()))
    yield Finding("records", f"{len(records):,} in {folder}{f' ({kinds})' if kinds else ''}")
    hashes = Counter(record.hash_version for _, record in records)
    if hashes:
        counts = ", ".join(f"version {version}: {count:,}" for version, count in sorted(hashes.items()))
        old = sum(count for version, count in hashes.items() if version < HASH_VERSION)
        remark = f"; {old:,} do not cover defaults in code, so their cells count as not measured" if old else ""
        yield Finding("hashes", f"{counts}{remark}")
    yield _finding("readable", broken, "all")
    misplaced = [
        f"{path} contains {record.key}" for path, record in records if folder / record.key.file("json") != path
    ]
    yield _finding("paths", misplaced, "all correct")
    yield _finding("duplicates", list(_repeated(records)), "none")
    tables = {path.with_name(name) for path, record in records for name in record.artifacts.values()}
    missing = [str(path) for path in sorted(tables) if not path.exists()]
    yield _finding("curves and predictions", missing, f"all {len(tables):,} present", "missing: ")
    known = {path for path, _ in records} | tables
    unknown = [str(path) for path in files if path not in known and not any(str(path) in line for line in broken)]
    yield _finding("other files", unknown, "none", "not part of any record: ")
    invalid: list[str] = []
    count = check_profiles(root, invalid.append)
    yield _finding("profiles", invalid, f"{count:,} valid")
    sizes = {path: path.stat().st_size for path in files}
    large = [f"{path} ({size / 2**20:,.0f} MiB)" for path, size in sizes.items() if size > LARGE_BYTES]
    yield _finding("size", large, f"{sum(sizes.values()) / 2**20:,.1f} MiB in {len(files):,} files", "very large: ")


def _load(paths: Iterator[Path]) -> tuple[list[tuple[Path, Record]], list[str], Counter[int]]:
    """Return the records with their paths, the errors of unreadable files, and the number per schema version."""
    found, broken, versions = [], [], Counter[int]()
    listed = list(paths)
    with bar(len(listed), "Checking records") as advance:
        for path in listed:
            try:
                record = load(path)
                versions[int(json.loads(path.read_bytes()).get("schema_version", SCHEMA_VERSION))] += 1
                found.append((path, record))
            except UserError as error:
                broken.append(str(error))
            advance(1)
    return found, broken, versions


def _repeated(records: Sequence[tuple[Path, Record]]) -> Iterator[str]:
    """Yield a description of each cell that several files contain."""
    places: dict[CellKey, list[Path]] = {}
    for path, record in records:
        places.setdefault(record.key, []).append(path)
    for key, paths in places.items():
        if len(paths) > 1:
            yield f"{key} in {', '.join(map(str, paths))}"


def _finding(what: str, problems: Sequence[str], text_if_ok: str, label: str = "") -> Finding:
    if not problems:
        return Finding(what, text_if_ok, True)
    more = f"; and {len(problems) - SHOWN:,} more" if len(problems) > SHOWN else ""
    return Finding(what, label + "; ".join(problems[:SHOWN]) + more, False)
