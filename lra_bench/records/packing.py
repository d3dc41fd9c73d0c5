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

from .packed import RECORDS, digest
from .schema import Record
from .store import RUNS, TABLES, load, read, root_in_errors, stored, write_lock
from .tables import arrow


def pack(root: Path) -> int:
    """Move all records of a results folder to ``records.jsonl`` and their tables to one Parquet file for each kind.

    Records that are packed already are kept, unless ``runs`` contains a record of the same cell. ``records.jsonl`` is
    replaced after the tables that it names were written, and the files in ``runs`` are removed last.

    Args:
        root: The results folder.

    Returns:
        The number of packed records.

    Raises:
        UserError: If a file is not a valid record or table, or if the tables of two records have different columns.
        Unwritable: If the folder cannot be written.
    """
    with root_in_errors(root), write_lock(root):
        found = stored(root, _refuse).values()
        records = [load(path) if content is None else read(content, str(path), path) for path, content in found]
        if not records:
            raise UserError(f"--results {root}: contains no record; name a results folder that contains runs/")
        written = {name: _pack_tables(root, name, records) for name in TABLES}
        with replacing(root / RECORDS) as path, path.open("w", encoding="utf-8") as file:
            for number, record in enumerate(records):
                artifacts = {name: tables[number] for name, tables in written.items() if tables[number]}
                json.dump(replace(record, artifacts=artifacts).to_dict(), file, separators=(",", ":"), allow_nan=False)
                file.write("\n")
        _remove_files(root, records, {table.partition("#")[0] for tables in written.values() for table in tables})
    return len(records)


def _pack_tables(root: Path, name: str, records: Sequence[Record]) -> list[str]:
    """Write one kind of table of all records as row groups of one file; return the artifact of each, if it has any."""
    from pyarrow import types
    from pyarrow.parquet import ParquetWriter

    content, groups, writer = BytesIO(), [], None
    for record in records:
        table = arrow(record, name)
        if table is None or not len(table):
            groups.append("")
            continue
        table = table.replace_schema_metadata(None)
        if writer is None:
            # The values of a column are similar, so that their first bytes are stored together.
            numbers = [
                field.name
                for field in table.schema
                if types.is_primitive(field.type) and field.type.bit_width in (32, 64)
            ]
            texts = [field.name for field in table.schema if field.name not in numbers]
            compressed: dict[str, Any] = {"compression": "zstd", "compression_level": 12, "use_dictionary": texts}
            writer = ParquetWriter(content, table.schema, use_byte_stream_split=numbers, **compressed)
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
