"""Read parquet files of encoded pictures, as on the Hugging Face Hub."""

from __future__ import annotations

import io
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from lra_bench.contracts import UserError
from lra_bench.data.archives import check_is_data

from .pixels import ROWS_PER_PART, SIDE, Part, checked_labels

_CODED_COLUMNS = ("img", "image", "jpeg")


def coded_column(path: Path) -> str | None:
    """Return the name of the column with encoded pictures, or None if it or the column of labels is missing.

    Raises ``UserError`` if the file cannot be read.
    """
    with _opened(path) as table:
        names = table.schema_arrow.names
    return next((name for name in _CODED_COLUMNS if name in names and "label" in names), None)


def read_table(path: Path, test: bool) -> Iterator[Part]:
    """Yield all pictures of a parquet file: PNG or JPEG as bytes, or as the ``bytes`` of a struct, and ``label``.

    Raises ``UserError`` if a picture is damaged or of another size, or a label is not a class. The message names file
    and row.
    """
    import pyarrow

    column, number = coded_column(path), 0
    with _opened(path) as table:
        batches = table.iter_batches(ROWS_PER_PART, columns=[column, "label"])
        while (batch := _next(batches, path)) is not None:
            coded = batch.column(column)
            coded = coded.field("bytes") if pyarrow.types.is_struct(coded.type) else coded
            pictures = [_decoded(code, f"row {row:,} of {path}") for row, code in enumerate(coded.to_pylist(), number)]
            where = f"{path} (rows {number:,} to {number + len(batch) - 1:,})"
            yield Part(
                test,
                np.stack([colours for colours, _ in pictures]),
                checked_labels(batch.column("label").to_pylist(), where),
                np.array([jpeg for _, jpeg in pictures]),
            )
            number += len(batch)


def _opened(path: Path) -> Any:
    import pyarrow
    import pyarrow.parquet

    check_is_data(path)
    try:
        return pyarrow.parquet.ParquetFile(path)
    except (pyarrow.ArrowException, OSError) as error:
        raise _unreadable(path, error) from error


def _next(batches: Iterator[Any], path: Path) -> Any:
    import pyarrow

    try:
        return next(batches, None)
    except (pyarrow.ArrowException, OSError) as error:
        raise _unreadable(path, error) from error


def _unreadable(path: Path, error: BaseException) -> UserError:
    first_line = str(error).strip().partition("\n")[0]
    return UserError(f"task.source: {path} cannot be read ({first_line})")


def _decoded(code: bytes | None, where: str) -> tuple[NDArray[np.uint8], bool]:
    """Return the colours (32, 32, 3) of a PNG or JPEG, and whether it is a JPEG."""
    from PIL import Image

    try:
        with Image.open(io.BytesIO(code or b""), formats=("PNG", "JPEG")) as picture:
            if picture.size == (SIDE, SIDE):
                return np.asarray(picture.convert("RGB")), picture.format == "JPEG"
            fault = "does not have 32 x 32 pixels"
    except (OSError, SyntaxError, ValueError, Image.DecompressionBombError):
        fault = "is not a valid PNG or JPEG"
    raise UserError(f"task.source: the picture in {where} {fault}")
