"""Checks of Parquet files before and while they are read."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

from lra_bench.contracts import UserError

if TYPE_CHECKING:
    from pyarrow.parquet import ParquetFile

LARGEST_ROWS = 10_000_000
"""More rows than any run has steps or predictions; a small file can announce billions."""


@contextmanager
def open_table(source: Any, where: str, numbers: Sequence[str], columns: Sequence[str] = ()) -> Iterator[ParquetFile]:
    """Open a Parquet file, given as a path or as bytes, and check it before any row is read.

    Raises ``UserError``, which names ``where`` the file is, if it is damaged, if it has too many rows, if one of
    ``columns`` or ``numbers`` is missing, or if one of ``numbers`` holds something else than numbers; what fails inside
    the context as damage does is such an error too. Raises ``FileNotFoundError`` if there is no file.
    """
    import pyarrow
    from pyarrow.parquet import ParquetFile

    try:
        # pandas' own reader takes several times as long over small files.
        with ParquetFile(pyarrow.BufferReader(source) if isinstance(source, bytes) else source) as file:
            if file.metadata.num_rows > LARGEST_ROWS:
                raise UserError(f"{where}: announces {file.metadata.num_rows:,} rows, more than {LARGEST_ROWS:,}")
            if lacking := sorted({*numbers, *columns} - set(file.schema_arrow.names)):
                raise UserError(f"{where}: has no column {lacking[0]}")
            for column in numbers:
                if not _is_number(file.schema_arrow.field(column).type):
                    raise UserError(f"{where}: column {column} holds no numbers")
            yield file
    except FileNotFoundError:
        raise
    except (pyarrow.ArrowException, OSError, UnicodeDecodeError) as error:
        raise UserError(f"{where}: cannot be read as a table ({str(error).strip().partition(chr(10))[0]})") from error


def check_table(content: bytes, where: str, numbers: Sequence[str]) -> None:
    """Raise ``UserError`` if the bytes are no Parquet file whose columns ``numbers`` can be read as numbers."""
    with open_table(content, where, numbers) as file:
        for _ in file.iter_batches(columns=list(numbers)):
            pass


def _is_number(kind: Any) -> bool:
    from pyarrow import types

    return bool(types.is_integer(kind) or types.is_floating(kind) or types.is_boolean(kind))
