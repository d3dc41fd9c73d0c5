"""Records on disk: one JSON file per cell with its tables next to it, or the packed records of a board."""

from __future__ import annotations

import hashlib
import json
import os
from collections.abc import Callable, Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import replace
from pathlib import Path
from types import MappingProxyType
from typing import TYPE_CHECKING, Any

from lra_bench.contracts import Unwritable, UserError
from lra_bench.data.locks import hold
from lra_bench.progress import bar, say
from lra_bench.runtime.files import expanded, read_whole, replacing, sweep, why

from .environment import HOST, host_name, same_host
from .key import CellKey
from .machines import name_machines
from .packed import RECORDS, digest, folder_of, packed, table_file
from .parquet import row_group
from .profiles import attach_costs, load_profiles
from .schema import FINISHED, Record
from .upgrades import upgrade
from .values import checked_json

if TYPE_CHECKING:
    import pandas as pd

RUNS = "runs"
LOCKS = ".locks"
LARGEST_BYTES = 8 * 2**20
"""Largest size in bytes of a JSON file that is read as a record."""
LARGEST_TABLE_BYTES = 256 * 2**20
"""Largest size in bytes of a table that is copied, within a results folder or from another one."""

TABLES = {"curves": ("step", "validation_score"), "predictions": ("length", "row", "correct", "target")}
"""The tables of a record by name, each with its required numeric columns."""


def results_root(option: str | os.PathLike[str] | None = None) -> Path:
    """Return the results folder: the first of ``option``, ``$LRA_BENCH_RESULTS`` and ``./results`` that is set.

    Raises ``UserError`` if it is a file.
    """
    root = expanded(option or os.environ.get("LRA_BENCH_RESULTS") or "results", "--results").absolute()
    if root.is_file():
        raise UserError(f"--results {root}: is a file; name a folder")
    return root


def existing_root(results: str | os.PathLike[str] | None) -> Path:
    """Return the results folder to read from. Raises ``UserError`` if ``results`` names a folder that is missing.

    The default folder may be missing, because the first run creates it.
    """
    root = results_root(results)
    if results is not None and not root.is_dir():
        raise UserError(f"--results {results}: there is no such folder; name the folder that contains runs/")
    return root


def check_writable(root: Path) -> None:
    """Raise ``Unwritable`` if no record can be written under ``root``; called before a long measurement."""
    # Write some bytes, because an empty file can be created on a full disk.
    with root_in_errors(root), replacing(root / RUNS / ".writable") as path:
        path.write_bytes(b"0" * 4096)
    (root / RUNS / ".writable").unlink(missing_ok=True)


def write(
    record: Record, root: Path, curves: pd.DataFrame | None = None, predictions: pd.DataFrame | None = None
) -> Path:
    """Write a record and its tables, replacing any record of the cell, and return the path of the JSON file.

    Raises ``Unwritable`` if the folder cannot be written.
    """
    with root_in_errors(root), write_lock(root):
        return _put(record, root / RUNS / record.key.file("json"), {"curves": curves, "predictions": predictions})


def keep_best(
    record: Record, root: Path, curves: pd.DataFrame | None = None, predictions: pd.DataFrame | None = None
) -> Record:
    """Write the record of a new attempt, unless only the existing record of the cell is finished (``FINISHED``).

    ``precedence`` is not compared: a new result replaces one of the same machine, also if it is worse. An existing
    record of another machine whose hardware has the same short name is moved to a name of that machine first, unless a
    record with higher ``precedence`` has that name. Raises ``Unwritable`` if the folder cannot be written.

    Returns:
        The record that is stored for the cell.
    """
    with root_in_errors(root), write_lock(root):
        earlier = find(record.key, root)
        if earlier is not None and not same_host(earlier.environment["hardware"], record.environment["hardware"]):
            _keep_for_machine(earlier, root)
            earlier = None
        if earlier is None or earlier.status not in FINISHED or record.status in FINISHED:
            _put(record, root / RUNS / record.key.file("json"), {"curves": curves, "predictions": predictions})
            return record
    say(f"{record.key}: {record.status} ({record.reason}); the earlier record ({earlier.status}) is kept.")
    return earlier


def _keep_for_machine(record: Record, root: Path) -> None:
    """Copy a record that is about to be replaced to the name of its machine, unless a better one has that name."""
    copy = replace(record, key=key_of_machine(record))
    stored = find(copy.key, root)
    machine = host_name(record.environment["hardware"])
    if stored is not None and precedence(stored) > precedence(copy):
        say(
            f"{record.key}: the record of another machine ({machine}, {record.status}) is replaced; "
            f"its better record {copy.key} is kept."
        )
        return
    _put(copy, root / RUNS / copy.key.file("json"), _stored_tables(record))
    say(f"{record.key}: the record of another machine ({machine}) was moved to {copy.key}.")


def key_of_machine(record: Record) -> CellKey:
    """Return the key of a record, with a digest of its machine appended to the hardware's name."""
    machine = record.environment["hardware"]
    # Rounded to GiB, because the kernel reserves a varying part of the memory.
    rounded = {**machine, "memory_bytes": round((machine.get("memory_bytes") or 0) / 2**30)}
    description = json.dumps([rounded.get(name) for name in HOST])
    digest = hashlib.sha256(description.encode()).hexdigest()[:6]
    return replace(record.key, hardware=f"{record.key.hardware}-{digest}")


def amend(record: Record, predictions: pd.DataFrame | None = None) -> None:
    """Write a loaded record, and its predictions if given, to the files from which it was loaded.

    Other tables are kept. A packed record is written to a file of its own with its tables. Raises ``Unwritable`` if the
    folder cannot be written.
    """
    path = record.path
    assert path is not None
    if (root := folder_of(path)) is not None:
        tables: dict[str, Any] = _stored_tables(record)
        if predictions is not None:
            tables["predictions"] = predictions
        with root_in_errors(root), write_lock(root):
            _put(record, root / RUNS / record.key.file("json"), tables)
        return
    target, relative_path = Path(os.path.abspath(path)), (RUNS, *record.key.file("json").parts)  # noqa: PTH100
    # A single file that is not in a results folder has no folder whose lock could be acquired.
    in_results_folder = target.parts[-len(relative_path) :] == relative_path
    try:
        with write_lock(target.parents[len(relative_path) - 1]) if in_results_folder else nullcontext():
            _put(record, path, {"predictions": predictions}, record.artifacts)
    except OSError as error:
        raise Unwritable(
            f"{path}: {why(error)}; make it writable, or use --no-write to print the points only"
        ) from error


def _put(
    record: Record,
    target: Path,
    tables: Mapping[str, pd.DataFrame | bytes | None],
    kept: Mapping[str, str] = MappingProxyType({}),
) -> Path:
    """Write a record and its tables, and remove other tables and temporary files of the cell.

    The names of tables contain a hash of their content, and the JSON file is written after them, so that it always
    refers to existing tables. The caller holds the lock of the results folder.

    Args:
        record: The record; its ``artifacts`` and ``path`` are updated.
        target: Path of the JSON file, which is returned.
        tables: Tables to write by name; None for tables that do not exist.
        kept: Existing tables that are kept, by name.
    """
    prefix = f"seed{record.key.seed}."
    target.parent.mkdir(parents=True, exist_ok=True)
    sweep(target.parent, prefix)  # temporary files of killed processes
    artifacts = dict(kept)
    for name, table in tables.items():
        if table is not None:
            content = table if isinstance(table, bytes) else table.to_parquet(index=False)
            artifacts[name] = record.key.file(f"{name}-{digest(content)}.parquet").name
            with replacing(target.with_name(artifacts[name])) as path:
                path.write_bytes(content)
    text = json.dumps(replace(record, artifacts=artifacts).to_dict(), indent=1, allow_nan=False) + "\n"
    with replacing(target) as path:
        path.write_text(text, encoding="utf-8")
    for path in target.parent.glob(f"{prefix}*.parquet"):
        if path.name not in artifacts.values():
            path.unlink(missing_ok=True)
    record.artifacts, record.path = artifacts, target
    return target


def content_of(path: Path, follow_links: bool = True) -> bytes:
    """Return the JSON of a record, from its file or from packed records. Raises ``UserError`` if it cannot be read."""
    root = folder_of(path)
    try:
        return read_whole(path, LARGEST_BYTES, follow_links) if root is None else packed(root, follow_links)[path]
    except (FileNotFoundError, KeyError) as error:
        raise UserError(f"{path}: no such record (lra-bench results list shows all records)") from error
    except OSError as error:
        raise UserError(f"{path}: cannot be read as a record ({error.strerror or error})") from error


def load(path: Path, follow_links: bool = True) -> Record:
    """Load a record from its JSON file or from packed records.

    Raises ``UserError`` if there is none, if it is not valid, or if it is a link although ``follow_links`` is false.
    """
    return read(content_of(path, follow_links), str(path), path)


def read(content: bytes, source: str, path: Path | None = None) -> Record:
    """Parse the JSON of a record of a supported schema version.

    ``source`` is where the content comes from, for error messages, and ``path`` is stored in the record. Raises
    ``UserError`` if the content is not a valid record.
    """
    try:
        return Record.from_dict(upgrade(checked_json(content)), path)
    except UserError as error:
        raise UserError(f"{source}: {error}") from error
    except (ValueError, LookupError, TypeError, AttributeError, ArithmeticError) as error:
        # All but ValueError are raised by an upgrade, which runs before the fields are checked.
        reason = error if isinstance(error, ValueError) else f"{type(error).__name__}: {error}"
        raise UserError(f"{source}: cannot be read as a record ({reason})") from error


def load_all(root: Path, broken: Callable[[str], None] = say) -> list[Record]:
    """Load all records under ``root``, sorted by cell.

    Files that are not valid records, or whose key does not match their path, are left out. ``broken`` is called with an
    error message for each. Machines are named by ``name_machines``, and costs are those of the profiles under ``root``
    (``attach_costs``).
    """
    records: list[Record] = []
    listed = paths(root, broken=broken)
    with bar(len(listed), f"reading {root}", unit="records") as advance:
        for path in listed:
            advance(1)
            try:
                record = load(path)
                if is_misplaced(record, root):
                    raise UserError(f"{path}: contains the record of {record.key} and is in the wrong place")
            except UserError as error:
                broken(f"{error}; left out")
            else:
                records.append(record)
    name_machines(records)
    attach_costs(records, load_profiles(root, records, broken))
    return records


def is_misplaced(record: Record, root: Path) -> bool:
    """Return whether a record was loaded from another path than that of its cell."""
    return record.path not in [root / folder / record.key.file("json") for folder in (RUNS, RECORDS)]


def paths(root: Path, pattern: str = "", broken: Callable[[str], None] | None = None) -> list[Path]:
    """Return the path of each record under ``root`` whose cell matches a pattern of five parts, sorted by cell.

    A file in ``runs`` replaces the packed record of the same cell. ``broken`` is called with an error message if the
    packed records cannot be read; without it, ``UserError`` is raised.
    """
    runs, found = root / RUNS, {}
    try:
        cells = {path.relative_to(root / RECORDS): path for path in packed(root)}
        found = {cell: path for cell, path in cells.items() if not pattern or cell.match(pattern)}
    except UserError as error:
        if broken is None:
            raise
        broken(f"{error}; left out")
    found.update((path.relative_to(runs), path) for path in runs.glob(pattern or "*/*/*/*/seed*.json"))
    return [found[cell] for cell in sorted(found)]


def find(key: CellKey, root: Path) -> Record | None:
    """Return the record with this key, or None if there is none."""
    found = paths(root, str(key.file("json")))
    return load(found[0]) if found else None


def precedence(record: Record) -> tuple[bool, bool, int, str]:
    """Return the precedence of a record, a sort key by which records of different folders or machines are merged.

    Of two records of a cell the one with the higher precedence is kept: status ``ok`` first, then the other statuses of
    ``FINISHED``, then the later attempt, then the later end.
    """
    return record.status == "ok", record.status in FINISHED, record.attempt, record.finished_at


def put_if_better(record: Record, tables: Mapping[str, bytes], root: Path) -> tuple[Record | None, bool]:
    """Write a record of another folder under ``root``, unless the existing one has the same or a higher ``precedence``.

    ``tables`` are the contents of its tables by name. The existing record, if any, and whether ``record`` was written
    are returned.
    """
    with root_in_errors(root), write_lock(root):
        existing = find(record.key, root)
        if existing is not None and precedence(existing) >= precedence(record):
            return existing, False
        _put(record, root / RUNS / record.key.file("json"), tables)
    return existing, True


def table_content(record: Record, name: str, follow_links: bool = True) -> bytes:
    """Return a table of a loaded record as the content of a Parquet file. Raises ``FileNotFoundError`` without one."""
    file, group = table_file(record, name)
    content = read_whole(file, LARGEST_TABLE_BYTES, follow_links)
    return content if group is None else row_group(content, str(file), group)


def _stored_tables(record: Record) -> dict[str, bytes]:
    """Return the contents of the existing tables of a loaded record, by name."""
    names = [name for name in TABLES if name in record.artifacts and table_file(record, name)[0].exists()]
    return {name: table_content(record, name) for name in names}


def cell_lock_path(key: CellKey, root: Path) -> Path:
    """Return the path of the lock file of a cell; the process that measures the cell holds the lock."""
    return root / LOCKS / key.folder() / f"seed{key.seed}.lock"


def write_lock(root: Path) -> AbstractContextManager[Any]:
    """Acquire the lock for changing records under ``root``; a context that releases it is returned."""
    return hold(root / LOCKS / "writing", f"--results {root}")


@contextmanager
def root_in_errors(root: Path) -> Iterator[None]:
    """Convert an ``OSError`` to ``Unwritable`` with a message that names the results folder."""
    try:
        yield
    except OSError as error:
        raise Unwritable(f"--results {root}: {why(error)}; choose another folder with --results") from error
