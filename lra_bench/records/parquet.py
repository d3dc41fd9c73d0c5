"""Open Parquet files with checks of size, columns and types."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from io import BytesIO
from typing import TYPE_CHECKING, Any

from lra_bench.contracts import UserError

if TYPE_CHECKING:
    from pyarrow.parquet import ParquetFile

LARGEST_ROWS = 2_000_000
"""Largest accepted number of rows, above the number of steps or predictions of any run.

A small damaged file can declare billions of rows.
"""


@contextmanager
def open_table(
    source: Any, where: str, numbers: Sequence[str], columns: Sequence[str] = (), group: int | None = None
) -> Iterator[ParquetFile]:
    """Open a Parquet file and check it before any row is read.

    Args:
        source: Path or content of the file.
        where: Name of the file, for error messages.
        numbers: Required columns of numbers.
        columns: Further required columns.
        group: The row group that is read, None for all.

    Yields:
        The open file.

    Raises:
        UserError: If the file is damaged, also when it is read inside the context, if it has more than
            ``LARGEST_ROWS`` rows, if it has no row group ``group``, if two columns have the same name, or if a required
            column is missing or not numeric.
        FileNotFoundError: If the file does not exist.
    """
    import pyarrow
    from pyarrow import types
    from pyarrow.parquet import ParquetFile

    try:
        # pandas.read_parquet takes several times as long for small files.
        with ParquetFile(pyarrow.BufferReader(source) if isinstance(source, bytes) else source) as file:
            if group is not None and group >= file.num_row_groups:
                raise UserError(f"{where}: has no row group {group}")
            part = file.metadata if group is None else file.metadata.row_group(group)
            if part.num_rows > LARGEST_ROWS:
                raise UserError(f"{where}: declares {part.num_rows:,} rows, more than {LARGEST_ROWS:,}")
            names = file.schema_arrow.names
            if len(set(names)) < len(names):
                raise UserError(f"{where}: has the column {max(names, key=names.count)} twice")
            if missing := sorted({*numbers, *columns} - set(names)):
                raise UserError(f"{where}: has no column {missing[0]}")
            for column in numbers:
                kind = file.schema_arrow.field(column).type
                if not (types.is_integer(kind) or types.is_floating(kind) or types.is_boolean(kind)):
                    raise UserError(f"{where}: column {column} is not numeric")
            yield file
    except FileNotFoundError:
        raise
    except (pyarrow.ArrowException, OSError, UnicodeDecodeError) as error:
        raise UserError(f"{where}: cannot be read as a table ({str(error).strip().partition(chr(10))[0]})") from error


def row_group(content: bytes, where: str, group: int) -> bytes:
    """Return a row group of a Parquet file as the content of another file. Raises ``UserError`` as ``open_table``."""
    from pyarrow.parquet import write_table

    with open_table(content, where, (), group=group) as file, BytesIO() as written:
        write_table(file.read_row_group(group), written)
        return written.getvalue()
