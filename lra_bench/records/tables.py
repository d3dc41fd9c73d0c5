"""Read the tables of a record: training curves, and predictions on the test split."""

from __future__ import annotations

from stat import S_ISREG
from typing import TYPE_CHECKING, Any

from lra_bench.contracts import UserError

from .packed import table_file
from .parquet import open_table
from .schema import Record
from .store import TABLES, load

if TYPE_CHECKING:
    import numpy as np
    import pandas as pd


def curves(record: Record) -> pd.DataFrame | None:
    """Return the training curves by step, or None if the record has none."""
    return _table(record, "curves")


def validation_curve(record: Record) -> tuple[np.ndarray, np.ndarray] | None:
    """Return the validated steps and their scores, (V,) each, or None if the record has no curves."""
    import numpy as np

    table = arrow(record, "curves", ["step", "validation_score"])
    if table is None:
        return None
    # pandas is avoided, because creating a frame takes longer than reading one of thousands of small files.
    step, score = (np.asarray(array(table[name]), dtype=float) for name in ("step", "validation_score"))
    known = ~np.isnan(score)
    return step[known].astype(int), score[known]


def array(column: Any) -> np.ndarray:
    """Return a column of an Arrow table as an array, numbers without importing pandas, as ``to_numpy`` does."""
    import numpy as np
    import pyarrow as pa

    if column.null_count or not (pa.types.is_integer(column.type) or pa.types.is_floating(column.type)):
        return np.asarray(column.to_numpy())
    return np.from_dlpack(column.combine_chunks())


def first_block(table: Any) -> np.ndarray:
    """Return which rows of predictions are of the first block, that of the training length, (rows,)."""
    import numpy as np

    places = [array(table[name]) for name in ("variant", "knob", "length") if name in table.schema.names]
    return np.logical_and.reduce([place == place[0] for place in places])


def predictions(record: Record) -> pd.DataFrame | None:
    """Return the test predictions by length and row, or None if the record has none."""
    return _table(record, "predictions")


def _table(record: Record, name: str) -> pd.DataFrame | None:
    table = arrow(record, name)
    # The metadata of pandas is unchecked input, and to_pandas reads it even with ignore_metadata=True.
    return None if table is None else table.replace_schema_metadata(None).to_pandas()


def arrow(record: Record, name: str, columns: list[str] | None = None) -> Any:
    """Return the columns of a table, None for all, as an Arrow table, or None if there is no table.

    If a later attempt has replaced the record since it was loaded, its table is returned. Raises ``UserError`` if the
    file is not a valid table.
    """
    if name not in record.artifacts or record.path is None:
        return None
    path, group = table_file(record, name)
    try:
        if not S_ISREG(path.stat().st_mode):
            raise UserError(f"{path}: cannot be read as a table (it is not a regular file)")
        with open_table(path, str(path), TABLES[name], columns or (), group) as file:
            return file.read(columns) if group is None else file.read_row_group(group, columns)
    except FileNotFoundError:
        if not record.path.exists() or (now := load(record.path)).artifacts == record.artifacts:
            return None
        return arrow(now, name, columns)
