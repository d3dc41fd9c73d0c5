"""Records on disk: one JSON per cell, with its curves and predictions beside it."""

from __future__ import annotations

import json
import os
import shutil
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from lra_bench.contracts import UserError
from lra_bench.files import replacing, why
from lra_bench.progress import say

from .schema import FINISHED, CellKey, Record, upgrade

if TYPE_CHECKING:
    import numpy as np
    import pandas as pd

RUNS = "runs"


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
    """Write ``record`` and its tables under ``root``; the path of the JSON, which comes last.

    Takes the place of an earlier attempt at the same cell. Raises ``UserError`` where the folder cannot be written.
    """
    runs = root / RUNS
    tables = {"curves": curves, "predictions": predictions}
    artifacts = {name: _table_file(record.key, name).name for name, table in tables.items() if table is not None}
    text = _text(replace(record, artifacts=artifacts))
    target = runs / record.key.file("json")
    with _told(root):
        for name, table in tables.items():
            if table is not None:
                with replacing(_table_file(record.key, name, runs)) as path:
                    table.to_parquet(path, index=False)
        with replacing(target) as path:
            path.write_text(text, encoding="utf-8")
        for name in tables.keys() - artifacts.keys():
            _table_file(record.key, name, runs).unlink(missing_ok=True)
    record.artifacts, record.path = artifacts, target
    return target


def keep_best(
    record: Record, root: Path, curves: pd.DataFrame | None = None, predictions: pd.DataFrame | None = None
) -> Record:
    """Write ``record``, unless it is unfinished and a finished one of the cell is there; the record that stands."""
    earlier = find(record.key, root)
    if earlier is not None and earlier.status in FINISHED and record.status not in FINISHED:
        say(f"{record.key}: {record.status} ({record.reason}); the earlier record, {earlier.status}, stays.")
        return earlier
    write(record, root, curves, predictions)
    return record


def amend(record: Record, predictions: pd.DataFrame | None = None) -> None:
    """Write a loaded record, and its predictions if given, in place of the files it came from; the rest stays.

    Raises ``UserError`` where the folder cannot be written.
    """
    assert record.path is not None
    name = _table_file(record.key, "predictions").name
    if predictions is not None:
        record.artifacts = {**record.artifacts, "predictions": name}
    text = _text(record)
    try:
        if predictions is not None:
            with replacing(record.path.with_name(name)) as path:
                predictions.to_parquet(path, index=False)
        with replacing(record.path) as path:
            path.write_text(text, encoding="utf-8")
    except OSError as error:
        raise UserError(f"{record.path}: {why(error)}; free it or print the points alone with --no-write") from error


def load(path: Path) -> Record:
    """The record in a JSON file, of whatever version; ``UserError`` names the file and what is wrong with it."""
    try:
        content = path.read_bytes()
    except FileNotFoundError as error:
        raise UserError(f"{path}: no such record (lra-bench leaderboard lists what is there)") from error
    except OSError as error:
        raise UserError(f"{path}: cannot be read as a record ({error})") from error
    return read(content, str(path), path)


def read(content: bytes, source: str, path: Path | None = None) -> Record:
    """The record in the bytes of a JSON file; ``UserError`` names the ``source`` and what is wrong with it."""
    try:
        return Record.from_dict(upgrade(json.loads(content)), path)
    except (ValueError, RecursionError) as error:
        raise UserError(f"{source}: cannot be read as a record ({error})") from error
    except (LookupError, TypeError, AttributeError) as error:  # from an upgrade, which runs before any check
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


def curves(record: Record) -> pd.DataFrame | None:
    """Training curves by step, None where the record has none."""
    return _table(record, "curves")


def validation_curve(record: Record) -> tuple[np.ndarray, np.ndarray] | None:
    """The validated steps and their scores, (V,) each, None where the record has no curves."""
    import numpy as np

    table = _arrow(record, "curves", ["step", "validation_score"])
    if table is None:
        return None
    # Without pandas, which takes longer than to read: there are thousands of small files.
    step, score = (np.asarray(table[name].to_numpy(), dtype=float) for name in ("step", "validation_score"))
    known = ~np.isnan(score)
    return step[known].astype(int), score[known]


def predictions(record: Record) -> pd.DataFrame | None:
    """Test predictions by length and row, None where the record has none."""
    return _table(record, "predictions")


@dataclass
class Imported:
    """What an import did: records added, put in place of older ones, left as they were; files that are no records."""

    added: int = 0
    replaced: int = 0
    kept: int = 0
    broken: list[str] = field(default_factory=list)


def import_folder(folder: Path, root: Path) -> Imported:
    """Merge the records under ``folder``, of another machine say, into ``root``.

    Of two records of one cell one that is ok wins, then one whose status is a result, the later attempt, the later end;
    the files of the winner are copied as they are. Raises ``UserError`` where there is nothing to import.
    """
    paths = sorted(folder.rglob("seed*.json"))
    if not paths:
        raise UserError(f"results import {folder}: holds no record; name a results folder with runs/ in it")
    done = Imported()
    for path in paths:
        try:
            record = load(path)
            ours = find(record.key, root)
        except UserError as error:
            done.broken.append(str(error))
            continue
        if ours is not None and precedence(ours) >= precedence(record):
            done.kept += 1
            continue
        _copy(record, root)
        if ours is None:
            done.added += 1
        else:
            done.replaced += 1
    return done


def precedence(record: Record) -> tuple[bool, bool, int, str]:
    """What decides which of two records of one cell stands: the larger."""
    return record.status == "ok", record.status in FINISHED, record.attempt, record.finished_at


def _copy(record: Record, root: Path) -> None:
    """Copy a loaded record and its tables to their place under ``root``, the JSON last."""
    assert record.path is not None
    with _told(root):
        for name in ("curves", "predictions"):
            ours = _table_file(record.key, name, root / RUNS)
            theirs = record.path.with_name(ours.name)
            if name in record.artifacts and theirs.exists():
                with replacing(ours) as path:
                    shutil.copyfile(theirs, path)
            else:
                ours.unlink(missing_ok=True)
        with replacing(root / RUNS / record.key.file("json")) as path:
            shutil.copyfile(record.path, path)


def _text(record: Record) -> str:
    return json.dumps(record.to_dict(), indent=1, allow_nan=False) + "\n"


def _table_file(key: CellKey, name: str, runs: Path = Path()) -> Path:
    return runs / key.file(f"{name}.parquet")


def _table(record: Record, name: str) -> pd.DataFrame | None:
    table = _arrow(record, name)
    return None if table is None else table.to_pandas()


def _arrow(record: Record, name: str, columns: list[str] | None = None) -> Any:
    """A record's table of Arrow, all ``columns`` or some, None where it has none."""
    if name not in record.artifacts or record.path is None:
        return None
    path = record.path.with_name(record.artifacts[name])
    if not path.exists():
        return None
    from pyarrow.parquet import ParquetFile

    with ParquetFile(path) as file:  # pandas' own reader takes several times as long over small files
        return file.read(columns)


@contextmanager
def _told(root: Path) -> Iterator[None]:
    """Turn an error of the file system into one sentence that names the results folder."""
    try:
        yield
    except OSError as error:
        raise UserError(f"--results {root}: {why(error)}; choose another folder with --results") from error
