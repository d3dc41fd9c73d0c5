"""Is a results folder sound? Every file under its own name, no cell twice, every table where its record says."""

from __future__ import annotations

import json
import re
from collections import Counter
from collections.abc import Iterator, Sequence
from pathlib import Path

from lra_bench.contracts import UserError
from lra_bench.progress import bar
from lra_bench.runtime.findings import Finding

from .key import CellKey
from .schema import Record
from .store import RUNS, load
from .upgrades import SCHEMA_VERSION

LARGE_BYTES = 64 * 2**20
SHOWN = 10


def check_store(root: Path) -> Iterator[Finding]:
    """Look at the records under ``root``: readable, in their place, once each, whole, and how large they are."""
    folder = root / RUNS
    files = sorted(path for path in folder.rglob("*") if path.is_file())
    records, broken, versions = _load(path for path in files if re.fullmatch(r"seed\d+\.json", path.name))
    kinds = ", ".join(f"version {version}: {count:,}" for version, count in sorted(versions.items()))
    yield Finding("records", f"{len(records):,} in {folder}{f' ({kinds})' if kinds else ''}")
    yield _finding("readable", broken, "all")
    misplaced = [f"{path} holds {record.key}" for path, record in records if folder / record.key.file("json") != path]
    yield _finding("in their place", misplaced, "all")
    yield _finding("once each", list(_repeated(records)), "all")
    tables = {path.with_name(name) for path, record in records for name in record.artifacts.values()}
    lacking = [str(path) for path in sorted(tables) if not path.exists()]
    yield _finding("curves and predictions", lacking, f"all {len(tables):,} there", "missing: ")
    known = {path for path, _ in records} | tables
    stray = [str(path) for path in files if path not in known and not any(str(path) in line for line in broken)]
    yield _finding("other files", stray, "none", "belong to no record: ")
    sizes = {path: path.stat().st_size for path in files}
    large = [f"{path} ({size / 2**20:,.0f} MiB)" for path, size in sizes.items() if size > LARGE_BYTES]
    yield _finding("size", large, f"{sum(sizes.values()) / 2**20:,.1f} MiB in {len(files):,} files", "very large: ")


def _load(paths: Iterator[Path]) -> tuple[list[tuple[Path, Record]], list[str], Counter[int]]:
    """Records with their paths, what is wrong with the other files, and how many there are of each schema version."""
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
    """Cells that several files hold."""
    places: dict[CellKey, list[Path]] = {}
    for path, record in records:
        places.setdefault(record.key, []).append(path)
    for key, paths in places.items():
        if len(paths) > 1:
            yield f"{key} in {', '.join(map(str, paths))}"


def _finding(what: str, problems: Sequence[str], fine: str, label: str = "") -> Finding:
    if not problems:
        return Finding(what, fine, True)
    more = f"; and {len(problems) - SHOWN:,} more" if len(problems) > SHOWN else ""
    return Finding(what, label + "; ".join(problems[:SHOWN]) + more, False)
