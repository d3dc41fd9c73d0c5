"""Records on disk: one JSON per cell, with its curves and predictions beside it."""

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
LARGEST_TABLE_BYTES = 256 * 2**20

TABLES = {"curves": ("step", "validation_score"), "predictions": ("length", "row", "correct", "target")}
"""The tables of a record, with the columns of numbers that readers need."""


def results_root(option: str | os.PathLike[str] | None = None) -> Path:
    """The results folder: the option, else ``$LRA_BENCH_RESULTS``, else ``./results``."""
    return Path(option or os.environ.get("LRA_BENCH_RESULTS") or "results").expanduser().absolute()


def check_writable(root: Path) -> None:
    """Raise ``UserError`` where no record could be written under ``root``, before hours are spent on one."""
    with _told(root), replacing(root / RUNS / ".writable") as path:
        path.write_bytes(b"0" * 4096)
    (root / RUNS / ".writable").unlink(missing_ok=True)


def write(
    record: Record, root: Path, curves: pd.DataFrame | None = None, predictions: pd.DataFrame | None = None
) -> Path:
    """Write ``record`` and its tables under ``root``; the path of the JSON.

    Takes the place of an earlier attempt at the same cell. Raises ``UserError`` where the folder cannot be written.
    """
    target = root / RUNS / record.key.file("json")
    with _told(root), _alone(root):
        _put(record, target, {"curves": curves, "predictions": predictions})
    return target


def keep_best(
    record: Record, root: Path, curves: pd.DataFrame | None = None, predictions: pd.DataFrame | None = None
) -> Record:
    """Write ``record``, unless it is unfinished and a finished one of the cell is there; the record that stands.

    An earlier record of another machine, whose hardware has the same short name, is moved to a name of its own.
    """
    with _told(root), _alone(root):
        earlier = find(record.key, root)
        if earlier is not None and not same_host(earlier.environment["hardware"], record.environment["hardware"]):
            _set_aside(earlier, root)
            earlier = None
        if earlier is None or earlier.status not in FINISHED or record.status in FINISHED:
            _put(record, root / RUNS / record.key.file("json"), {"curves": curves, "predictions": predictions})
            return record
    say(f"{record.key}: {record.status} ({record.reason}); the earlier record, {earlier.status}, stays.")
    return earlier


def _set_aside(record: Record, root: Path) -> None:
    """Move a record to a hardware name that ends in a digest of its machine, unless a better one is there already."""
    moved = replace(record, key=key_of_machine(record))
    there = find(moved.key, root)
    if there is None or precedence(there) < precedence(moved):
        _put(moved, root / RUNS / moved.key.file("json"), _stored_tables(record))
    machine = host_name(record.environment["hardware"])
    say(f"{record.key}: the record of another machine ({machine}) is now {moved.key}.")


def key_of_machine(record: Record) -> CellKey:
    """The key of a record with a digest of its machine added to the hardware."""
    machine = record.environment["hardware"]
    rounded = {**machine, "memory_bytes": round((machine.get("memory_bytes") or 0) / 2**30)}
    described = json.dumps([rounded.get(name) for name in HOST])
    digest = hashlib.sha256(described.encode()).hexdigest()[:6]
    return replace(record.key, hardware=f"{record.key.hardware}-{digest}")


def amend(record: Record, predictions: pd.DataFrame | None = None) -> None:
    """Write a loaded record, and its predictions if given, in place of the files it came from; the rest stays.

    Raises ``UserError`` where the folder cannot be written.
    """
    path = record.path
    assert path is not None
    target, place = Path(os.path.abspath(path)), (RUNS, *record.key.file("json").parts)  # noqa: PTH100
    at_home = target.parts[-len(place) :] == place
    try:
        with _alone(target.parents[len(place) - 1]) if at_home else nullcontext():
            _put(record, path, {"predictions": predictions}, record.artifacts)
    except OSError as error:
        raise Unwritable(f"{path}: {why(error)}; free it or print the points alone with --no-write") from error


def _put(
    record: Record,
    target: Path,
    tables: Mapping[str, pd.DataFrame | bytes | None],
    kept: Mapping[str, str] = MappingProxyType({}),
) -> None:
    """Write a record and its tables, and remove those of its cell that are neither written nor ``kept``.

    Tables are named by their content and the JSON comes after them, so that at any time it names its own. No other
    process must write to the cell meanwhile.
    """
    own = f"seed{record.key.seed}."
    target.parent.mkdir(parents=True, exist_ok=True)
    sweep(target.parent, own)
    written = {
        name: _write_table(record.key, name, table, target.parent)
        for name, table in tables.items()
        if table is not None
    }
    artifacts = {**kept, **written}
    text = _text(replace(record, artifacts=artifacts))
    with replacing(target) as path:
        path.write_text(text, encoding="utf-8")
    for path in target.parent.glob(f"{own}*.parquet"):
        if path.name not in artifacts.values():
            path.unlink(missing_ok=True)
    record.artifacts, record.path = artifacts, target


def _write_table(key: CellKey, name: str, table: pd.DataFrame | bytes, folder: Path) -> str:
    """Write a table beside the record of its cell; its name."""
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
    """The record in a JSON file, of whatever version; ``UserError`` names the file and what is wrong with it."""
    try:
        content = read_whole(path, LARGEST_BYTES)
    except FileNotFoundError as error:
        raise UserError(f"{path}: no such record (lra-bench leaderboard lists what is there)") from error
    except OSError as error:
        raise UserError(f"{path}: cannot be read as a record ({error.strerror or error})") from error
    return read(content, str(path), path)


def read(content: bytes, source: str, path: Path | None = None) -> Record:
    """The record in the bytes of a JSON file; ``UserError`` names the ``source`` and what is wrong with it."""
    try:
        return Record.from_dict(upgrade(checked_json(content, _refuse)), path)
    except (ValueError, RecursionError) as error:
        raise UserError(f"{source}: cannot be read as a record ({error})") from error
    except (
        LookupError,
        TypeError,
        AttributeError,
        ArithmeticError,
    ) as error:  # from an upgrade, which runs before any check
        raise UserError(f"{source}: cannot be read as a record ({type(error).__name__}: {error})") from error
    except UserError as error:
        raise UserError(f"{source}: {error}") from error


def load_all(root: Path, broken: Callable[[str], None] = say) -> list[Record]:
    """Every record under ``root``, in the order of their paths; ``broken`` hears of each file that is none."""
    records = []
    for path in sorted((root / RUNS).glob("*/*/*/*/seed*.json")):
        try:
            record = load(path)
            if root / RUNS / record.key.file("json") != path:
                raise UserError(f"{path}: holds the record of {record.key}, so it lies in the wrong place")
        except UserError as error:
            broken(f"{error}; left out")
        else:
            records.append(record)
    return records


def find(key: CellKey, root: Path) -> Record | None:
    """The record of a cell, None where there is none."""
    path = root / RUNS / key.file("json")
    return load(path) if path.exists() else None


def precedence(record: Record) -> tuple[bool, bool, int, str]:
    """What decides which of two records of one cell stands: the larger."""
    return record.status == "ok", record.status in FINISHED, record.attempt, record.finished_at


def put_if_better(record: Record, tables: Mapping[str, bytes], root: Path) -> tuple[Record | None, bool]:
    """Write a record of another folder and its tables under ``root`` if it is the better one; ours, and whether."""
    with _told(root), _alone(root):
        ours = find(record.key, root)
        if ours is not None and precedence(ours) >= precedence(record):
            return ours, False
        _put(record, root / RUNS / record.key.file("json"), tables)
    return ours, True


def _stored_tables(record: Record) -> dict[str, bytes]:
    """The tables beside a loaded record, by name."""
    assert record.path is not None
    tables = {name: record.path.with_name(record.artifacts[name]) for name in TABLES if name in record.artifacts}
    return {name: read_whole(table, LARGEST_TABLE_BYTES) for name, table in tables.items() if table.exists()}


def _refuse(name: str) -> None:
    raise ValueError(f"it holds {name}, which is no JSON")


def _text(record: Record) -> str:
    return json.dumps(record.to_dict(), indent=1, allow_nan=False) + "\n"


def claim(key: CellKey, root: Path) -> Path:
    """The file whose lock keeps a cell of a results folder for one process, of whatever machine."""
    return root / LOCKS / key.folder() / f"seed{key.seed}.lock"


def _alone(root: Path) -> AbstractContextManager[Any]:
    """The right to change records under ``root``; the kernel gives it back when its holder dies."""
    return hold(root / LOCKS / "writing", f"--results {root}")


@contextmanager
def _told(root: Path) -> Iterator[None]:
    """Turn an error of the file system into one sentence that names the results folder."""
    try:
        yield
    except OSError as error:
        raise Unwritable(f"--results {root}: {why(error)}; choose another folder with --results") from error
