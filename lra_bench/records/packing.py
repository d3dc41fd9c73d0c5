"""Pack the records of a results folder, so that a board consists of a few files."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import replace
from io import BytesIO
from pathlib import Path
from typing import Any

from lra_bench.contracts import UserError
from lra_bench.runtime.files import replacing

from .board import write_board
from .packed import RECORDS, digest
from .schema import Record
from .store import RUNS, TABLES, load_all, root_in_errors, write_lock
from .tables import array, arrow, first_block

ROUNDED = ("train_loss", "learning_rate", "gradient_norm", "tokens_seen", "loss")
"""Columns of tables that packing rounds to ``DIGITS``, except losses of which tables show intervals and tests.

These are the losses of language models at the training length, which are stored as float32.
"""

DIGITS = 9
"""Number of binary digits of rounded values, which change by at most 0.2 %."""

COUNTERS = ("step", "row", "tokens_seen")
"""Columns of integers that increase; differences of neighbours are stored."""


def pack(root: Path) -> int:
    """Move all records of a results folder to ``records.jsonl`` and their tables to one Parquet file for each kind.

    Records that are packed already are kept, unless ``runs`` contains a record of the same cell. ``records.jsonl`` is
    replaced after the tables that it names were written, and the files in ``runs`` are removed last. The number of
    records is returned. ``board.json`` contains the digests of the files.

    Raises ``UserError`` if a file is not a valid record or table, or if the tables of two records have different
    columns, and ``Unwritable`` if the folder cannot be written.
    """
    with root_in_errors(root), write_lock(root):
        records = load_all(root, _refuse)
        if not records:
            raise UserError(f"--results {root}: contains no record; name a results folder that contains runs/")
        written = {name: _pack_tables(root, name, records) for name in TABLES}
        with replacing(root / RECORDS) as path, path.open("w", encoding="utf-8") as file:
            for number, record in enumerate(records):
                artifacts = {name: tables[number] for name, tables in written.items() if tables[number]}
                json.dump(replace(record, artifacts=artifacts).to_dict(), file, separators=(",", ":"), allow_nan=False)
                file.write("\n")
        _remove_files(root, records, {table.partition("#")[0] for tables in written.values() for table in tables})
        write_board(root)
    return len(records)


def _pack_tables(root: Path, name: str, records: Sequence[Record]) -> list[str]:
    """Write one kind of table of all records as row groups of one file; return the artifact of each, if it has any."""
    from pyarrow.parquet import ParquetWriter

    content, groups, writer = BytesIO(), [], None
    for record in records:
        table = arrow(record, name)
        if table is None or not len(table):
            groups.append("")
            continue
        table = _rounded(table.replace_schema_metadata(None), record)
        if writer is None:
            encodings = _encodings(table.schema)
            options: dict[str, Any] = {
                "use_dictionary": [column for column in table.schema.names if column not in encodings],
                "column_encoding": encodings,
            }
            writer = ParquetWriter(
                content, table.schema, compression="zstd", compression_level=19, write_statistics=False, **options
            )
        if table.schema != writer.schema:
            raise UserError(f"{record.path}: {name} have other columns than those of the records before it")
        writer.write_table(table, row_group_size=len(table))
        groups.append(str(sum(map(bool, groups))))
    if writer is None:
        return groups
    writer.close()
    file = f"{name}-{digest(content.getvalue())}.parquet"
    with replacing(root / file) as path:
        path.write_bytes(content.getvalue())
    return [f"{file}#{group}" if group else "" for group in groups]


def _encodings(schema: Any) -> dict[str, str]:
    """Return the Parquet encodings of columns with many different values; the others are stored in a dictionary."""
    from pyarrow import types

    counters = [field.name for field in schema if field.name in COUNTERS and types.is_integer(field.type)]
    floats = [field.name for field in schema if field.name != "correct" and types.is_floating(field.type)]
    return {**dict.fromkeys(counters, "DELTA_BINARY_PACKED"), **dict.fromkeys(floats, "BYTE_STREAM_SPLIT")}


def _rounded(table: Any, record: Record) -> Any:
    """Return a table with rounded columns of numbers, see ``ROUNDED``; those of floats are float32."""
    import numpy as np
    import pyarrow as pa

    for index, field in enumerate(table.schema):
        column, is_float = table[field.name], pa.types.is_floating(field.type)
        known = pa.types.is_integer(field.type) and not column.null_count
        if field.name not in ROUNDED or not (is_float or known):
            continue
        values = array(column).astype(np.float64)
        mantissa, exponent = np.frexp(values)
        rounded = np.ldexp(np.round(np.ldexp(mantissa, DIGITS)), exponent - DIGITS)
        if field.name == "loss" and not record.higher_is_better:
            rounded = np.where(first_block(table), values, rounded)
        kind = pa.float32() if is_float else field.type
        table = table.set_column(index, field.name, pa.array(rounded).cast(kind))
    return table


def _remove_files(root: Path, records: Sequence[Record], kept: set[str]) -> None:
    """Remove the files of records that were packed, empty folders, and tables that no packed record names."""
    for record in records:
        assert record.path is not None
        if record.path.is_file():
            for path in record.path.parent.glob(f"seed{record.key.seed}.*"):
                path.unlink()
    for folder in (*sorted((root / RUNS).rglob("*/"), reverse=True), root / RUNS):
        if folder.is_dir() and not any(folder.iterdir()):
            folder.rmdir()
    for name in TABLES:
        for path in root.glob(f"{name}-*.parquet"):
            if path.name not in kept:
                path.unlink()


def _refuse(message: str) -> None:
    raise UserError(message)
