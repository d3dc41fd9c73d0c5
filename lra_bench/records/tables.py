"""The tables beside a record: its learning curves, and its predictions on test rows."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from stat import S_ISREG
from typing import TYPE_CHECKING, Any

from lra_bench.contracts import UserError

from .parquet import open_table
from .schema import Record
from .store import TABLES, load

if TYPE_CHECKING:
    import numpy as np
    import pandas as pd


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


def _table(record: Record, name: str) -> pd.DataFrame | None:
    table = _arrow(record, name)
    # What pandas noted there is not checked, and is read even where it is to be ignored.
    return None if table is None else table.replace_schema_metadata(None).to_pandas()


def _arrow(record: Record, name: str, columns: list[str] | None = None) -> Any:
    """A table of Arrow, all ``columns`` or some, of a later attempt where one took the record's place; None without."""
    if name not in record.artifacts or record.path is None:
        return None
    try:
        return _read_table(record.path.with_name(record.artifacts[name]), TABLES[name], columns)
    except FileNotFoundError:
        if not record.path.exists() or (now := load(record.path)).artifacts == record.artifacts:
            return None
        return _arrow(now, name, columns)


def _read_table(path: Path, numbers: Sequence[str], columns: list[str] | None) -> Any:
    """A table, or ``columns`` of it; ``UserError`` where it is none, or ``numbers`` are not numbers in it."""
    if not S_ISREG(path.stat().st_mode):
        raise UserError(f"{path}: cannot be read as a table (it is no file)")
    with open_table(path, str(path), numbers, columns or ()) as file:
        return file.read(columns)
