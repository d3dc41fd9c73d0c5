"""Records on disk: one JSON file per cell, with its curves and predictions in the same folder."""

from __future__ import annotations

import hashlib
import io
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
from lra_bench.progress import say
from lra_bench.runtime.files import read_whole, replacing, sweep, why

from .environment import HOST, host_name, same_host
from .key import CellKey
from .schema import FINISHED, Record
from .upgrades import upgrade
from .values import checked_json

if TYPE_CHECKING:
    import pandas as pd

RUNS = "runs"
LOCKS = ".locks"
LARGEST_BYTES = 64 * 2**20
"""Largest accepted size of a record."""
LARGEST_TABLE_BYTES = 256 * 2**20
"""Largest accepted size of a table of another results folder."""

TABLES = {"curves": ("step", "validation_score"), "predictions": ("length", "row", "correct", "target")}
"""The tables of a record, with their required columns of numbers."""


def results_root(option: str | os.PathLike[str] | None = None) -> Path:
    """Return the results folder: ``option``, ``$LRA_BENCH_RESULTS`` or ``./results``, the first that is set."""
    return Path(option or os.environ.get("LRA_BENCH_RESULTS") or "results").expanduser().absolute()


def check_writable(root: Path) -> None:
    """Raise ``UserError`` if no record can be written under ``root``; called before a long measurement."""
    with _root_in_errors(root), replacing(root / RUNS / ".writable") as path:
        path.write_bytes(b"0" * 4096)
    (root / RUNS / ".writable").unlink(missing_ok=True)


def write(
    record: Record, root: Path, curves: pd.DataFrame | None = None, predictions: pd.DataFrame | None = None
) -> Path:
    """Write a record and its tables and return the path of the JSON file.

    An earlier attempt at the same cell is replaced.

    Args:
        record: The record.
        root: The results folder.
        curves: Training curves by step.
        predictions: Predictions on the test split.

    Returns:
        The path of the JSON file.

    Raises:
        Unwritable: If the folder cannot be written.
    """
    target = root / RUNS / record.key.file("json")
    with _root_in_errors(root), _write_lock(root):
        _put(record, target, {"curves": curves, "predictions": predictions})
    return target


def keep_best(
    record: Record, root: Path, curves: pd.DataFrame | None = None, predictions: pd.DataFrame | None = None
) -> Record:
    """Write a record, unless it is unfinished and a finished record of the cell exists.

    An earlier record of another machine whose hardware has the same short name is moved to a different name.

    Args:
        record: The record.
        root: The results folder.
        curves: Training curves by step.
        predictions: Predictions on the test split.

    Returns:
        The record that is stored for the cell.

    Raises:
        Unwritable: If the folder cannot be written.
    """
    with _root_in_errors(root), _write_lock(root):
        earlier = find(record.key, root)
        if earlier is not None and not same_host(earlier.environment["hardware"], record.environment["hardware"]):
            _rename_for_machine(earlier, root)
            earlier = None
        if earlier is None or earlier.status not in FINISHED or record.status in FINISHED:
            _put(record, root / RUNS / record.key.file("json"), {"curves": curves, "predictions": predictions})
            return record
    say(f"{record.key}: {record.status} ({record.reason}); the earlier record ({earlier.status}) is kept.")
    return earlier


def _rename_for_machine(record: Record, root: Path) -> None:
    """Move a record to a hardware name that ends in a digest of its machine, unless a better record has that name."""
    moved = replace(record, key=key_of_machine(record))
    stored = find(moved.key, root)
    if stored is None or precedence(stored) < precedence(moved):
        _put(moved, root / RUNS / moved.key.file("json"), _stored_tables(record))
    machine = host_name(record.environment["hardware"])
    say(f"{record.key}: the record of another machine ({machine}) was moved to {moved.key}.")


def key_of_machine(record: Record) -> CellKey:
    """Return the key of a record, with a digest of its machine appended to the hardware's name."""
    machine = record.environment["hardware"]
    rounded = {**machine, "memory_bytes": round((machine.get("memory_bytes") or 0) / 2**30)}
    description = json.dumps([rounded.get(name) for name in HOST])
    digest = hashlib.sha256(description.encode()).hexdigest()[:6]
    return replace(record.key, hardware=f"{record.key.hardware}-{digest}")


def amend(record: Record, predictions: pd.DataFrame | None = None) -> None:
    """Write a loaded record, and its predictions if given, to the files from which it was loaded.

    Other tables are kept. Raises ``Unwritable`` if the folder cannot be written.
    """
    path = record.path
    assert path is not None
    target, relative_path = Path(os.path.abspath(path)), (RUNS, *record.key.file("json").parts)  # noqa: PTH100
    in_results_folder = target.parts[-len(relative_path) :] == relative_path
    try:
        with _write_lock(target.parents[len(relative_path) - 1]) if in_results_folder else nullcontext():
            _put(record, path, {"predictions": predictions}, record.artifacts)
    except OSError as error:
        raise Unwritable(
            f"{path}: {why(error)}; make it writable or use --no-write to only print the points"
        ) from error


def _put(
    record: Record,
    target: Path,
    tables: Mapping[str, pd.DataFrame | bytes | None],
    kept: Mapping[str, str] = MappingProxyType({}),
) -> None:
    """Write a record and its tables, and remove other tables of the cell.

    The names of tables contain a hash of their content, and the JSON file is written after them, so that it always
    refers to existing tables. The caller holds the lock of the results folder.

    Args:
        record: The record; its ``artifacts`` and ``path`` are updated.
        target: Path of the JSON file.
        tables: Tables to write by name; None for tables that do not exist.
        kept: Existing tables that are kept, by name.
    """
    prefix = f"seed{record.key.seed}."
    target.parent.mkdir(parents=True, exist_ok=True)
    sweep(target.parent, prefix)
    written = {
        name: _write_table(record.key, name, table, target.parent)
        for name, table in tables.items()
        if table is not None
    }
    artifacts = {**kept, **written}
    text = _text(replace(record, artifacts=artifacts))
    with replacing(target) as path:
        path.write_text(text, encoding="utf-8")
    for path in target.parent.glob(f"{prefix}*.parquet"):
        if path.name not in artifacts.values():
            path.unlink(missing_ok=True)
    record.artifacts, record.path = artifacts, target


def _write_table(key: CellKey, name: str, table: pd.DataFrame | bytes, folder: Path) -> str:
    """Write a table to the folder of its record and return its file name."""
    content = table if isinstance(table, bytes) else _parquet(table)
    file = key.file(f"{name}-{hashlib.sha256(content).hexdigest()[:8]}.parquet").name
    with replacing(folder / file) as path:
        path.write_bytes(content)
    return file


def _parquet(table: pd.DataFrame) -> bytes:
    buffer = io.BytesIO()
    table.to_parquet(buffer, index=False)
    return buffer.getvalue()


def load(path: Path) -> Record:
    """Load the record in a JSON file of any schema version. Raises ``UserError`` if the file is not a valid record."""
    try:
        content = read_whole(path, LARGEST_BYTES)
    except FileNotFoundError as error:
        raise UserError(f"{path}: no such record (lra-bench results list shows all records)") from error
    except OSError as error:
        raise UserError(f"{path}: cannot be read as a record ({error.strerror or error})") from error
    return read(content, str(path), path)


def read(content: bytes, source: str, path: Path | None = None) -> Record:
    """Parse a record of any schema version.

    Args:
        content: Content of the JSON file.
        source: Where the content comes from, for error messages.
        path: Path of the file, stored in the record.

    Returns:
        The record.

    Raises:
        UserError: If the content is not a valid record.
    """
    try:
        return Record.from_dict(upgrade(checked_json(content, _refuse)), path)
    except (ValueError, RecursionError) as error:
        raise UserError(f"{source}: cannot be read as a record ({error})") from error
    except (
        LookupError,
        TypeError,
        AttributeError,
        ArithmeticError,
    ) as error:  # raised by an upgrade, which runs before the fields are checked
        raise UserError(f"{source}: cannot be read as a record ({type(error).__name__}: {error})") from error
    except UserError as error:
        raise UserError(f"{source}: {error}") from error


def load_all(root: Path, broken: Callable[[str], None] = say) -> list[Record]:
    """Load all records under ``root``, sorted by path.

    ``broken`` is called with the error message of each file that is not a valid record.
    """
    records = []
    for path in sorted((root / RUNS).glob("*/*/*/*/seed*.json")):
        try:
            record = load(path)
            if root / RUNS / record.key.file("json") != path:
                raise UserError(f"{path}: contains the record of {record.key} and is in the wrong place")
        except UserError as error:
            broken(f"{error}; left out")
        else:
            records.append(record)
    return records


def find(key: CellKey, root: Path) -> Record | None:
    """Return the record of a cell, or None if there is none."""
    path = root / RUNS / key.file("json")
    return load(path) if path.exists() else None


def precedence(record: Record) -> tuple[bool, bool, int, str]:
    """Return the precedence of a record; of two records of a cell the one with the larger precedence is kept."""
    return record.status == "ok", record.status in FINISHED, record.attempt, record.finished_at


def put_if_better(record: Record, tables: Mapping[str, bytes], root: Path) -> tuple[Record | None, bool]:
    """Write a record of another folder under ``root`` unless the existing one has at least its precedence.

    Args:
        record: The record.
        tables: Contents of its tables by name.
        root: The results folder.

    Returns:
        The existing record, if any, and whether ``record`` was written.
    """
    with _root_in_errors(root), _write_lock(root):
        existing = find(record.key, root)
        if existing is not None and precedence(existing) >= precedence(record):
            return existing, False
        _put(record, root / RUNS / record.key.file("json"), tables)
    return existing, True


def _stored_tables(record: Record) -> dict[str, bytes]:
    """Return the contents of the tables of a loaded record by name."""
    assert record.path is not None
    tables = {name: record.path.with_name(record.artifacts[name]) for name in TABLES if name in record.artifacts}
    return {name: read_whole(table, LARGEST_TABLE_BYTES) for name, table in tables.items() if table.exists()}


def _refuse(name: str) -> None:
    raise ValueError(f"it contains {name}, which is not valid JSON")


def _text(record: Record) -> str:
    return json.dumps(record.to_dict(), indent=1, allow_nan=False) + "\n"


def claim(key: CellKey, root: Path) -> Path:
    """Return the lock file of a cell, which one process on one machine holds while it measures the cell."""
    return root / LOCKS / key.folder() / f"seed{key.seed}.lock"


def _write_lock(root: Path) -> AbstractContextManager[Any]:
    """Acquire the lock for changing records under ``root``; the kernel releases it when the process exits."""
    return hold(root / LOCKS / "writing", f"--results {root}")


@contextmanager
def _root_in_errors(root: Path) -> Iterator[None]:
    """Convert errors of the file system to ``Unwritable`` with the results folder."""
    try:
        yield
    except OSError as error:
        raise Unwritable(f"--results {root}: {why(error)}; choose another folder with --results") from error
