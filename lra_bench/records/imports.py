"""Merge the records of another results folder into the user's results folder."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from pathlib import Path

from lra_bench.contracts import Unwritable, UserError

from .environment import same_host
from .packed import RECORDS, packed, table_file
from .parquet import open_table
from .schema import Record
from .store import TABLES, find, key_of_machine, load, precedence, put_if_better, table_content


@dataclass
class Imported:
    """Result of an import.

    Attributes:
        added: Number of new records.
        replaced: Number of existing records that were replaced.
        kept: Number of existing records that were kept.
        broken: Error messages of files that were left out.
    """

    added: int = 0
    replaced: int = 0
    kept: int = 0
    broken: list[str] = field(default_factory=list)


def import_folder(folder: Path, root: Path) -> Imported:
    """Merge the records under ``folder``, for example of another machine, into the results folder ``root``.

    Of two records of the same cell the one with the higher ``precedence`` is kept, in the current schema version:
    status ``ok`` first, then statuses that are results, the later attempt, the later end. If the two are of different
    machines with the same short name, both are kept, the imported one under a different name.

    Links, files that are not regular, and tables without the required numeric columns are left out. All files are read
    and checked before the lock of ``root`` is acquired. Raises ``UserError`` if there is nothing to import and
    ``Unwritable`` if ``root`` cannot be written.
    """
    found, result = sorted(folder.rglob("seed*.json")), Imported()
    for file in sorted(folder.rglob(RECORDS)):
        try:
            found.extend(packed(file.parent, follow_links=False))
        except UserError as error:
            result.broken.append(str(error))
    if not found and not result.broken:
        raise UserError(f"results import {folder}: contains no record; name a results folder that contains runs/")
    for path in found:
        try:
            record = load(path, follow_links=False)
            existing = find(record.key, root)
            if existing is not None and not same_host(existing.environment["hardware"], record.environment["hardware"]):
                record = replace(record, key=key_of_machine(record))
                existing = find(record.key, root)
            if existing is not None and precedence(existing) >= precedence(record):
                result.kept += 1
                continue
            tables, table_errors = _foreign_tables(record)
            existing, written = put_if_better(record, tables, root)
        except Unwritable:
            raise
        except UserError as error:
            result.broken.append(str(error))
            continue
        if not written:
            result.kept += 1
            continue
        result.broken += table_errors
        if existing is None:
            result.added += 1
        else:
            result.replaced += 1
    return result


def _foreign_tables(record: Record) -> tuple[dict[str, bytes], list[str]]:
    """Return the valid tables of a record of another folder, and the errors of its invalid tables."""
    tables, problems = {}, []
    for name, numbers in TABLES.items():
        if name not in record.artifacts:
            continue
        table, _ = table_file(record, name)
        try:
            content = table_content(record, name, follow_links=False)
            with open_table(content, str(table), numbers) as file:
                for _ in file.iter_batches(columns=list(numbers)):  # reads all values
                    pass
        except FileNotFoundError:
            continue
        except OSError as error:
            problems.append(f"{table}: cannot be read as a table ({error.strerror or error}); left out")
        except UserError as error:
            problems.append(f"{error}; left out")
        else:
            tables[name] = content
    return tables, problems
