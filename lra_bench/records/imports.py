"""Merge the records of another results folder into one's own."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from pathlib import Path

from lra_bench.contracts import Unwritable, UserError
from lra_bench.runtime.files import read_whole

from .environment import same_host
from .parquet import check_table
from .schema import Record
from .store import LARGEST_BYTES, LARGEST_TABLE_BYTES, TABLES, find, key_of_machine, precedence, put_if_better, read


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
    the winner is written as a record of this version. If the two are of different machines with the same short name,
    both stay, the imported one under a name of its own. Links and what is no regular file are left out, and so are
    tables without the numbers that readers need; all is read and checked before the lock on ``root`` is taken. Raises
    ``UserError`` where there is nothing to import.
    """
    paths = sorted(folder.rglob("seed*.json"))
    if not paths:
        raise UserError(f"results import {folder}: holds no record; name a results folder with runs/ in it")
    done = Imported()
    for path in paths:
        try:
            record = _foreign_record(path)
            ours = find(record.key, root)
            if ours is not None and not same_host(ours.environment["hardware"], record.environment["hardware"]):
                record = replace(record, key=key_of_machine(record))
                ours = find(record.key, root)
            if ours is not None and precedence(ours) >= precedence(record):
                done.kept += 1
                continue
            tables, lacking = _foreign_tables(record, path)
            ours, taken = put_if_better(record, tables, root)
        except Unwritable:
            raise
        except UserError as error:
            done.broken.append(str(error))
            continue
        done.broken += lacking
        if not taken:
            done.kept += 1
        elif ours is None:
            done.added += 1
        else:
            done.replaced += 1
    return done


def _foreign_record(path: Path) -> Record:
    """Load a record of another folder, without following a link."""
    try:
        content = read_whole(path, LARGEST_BYTES, follow_links=False)
    except OSError as error:
        raise UserError(f"{path}: cannot be read as a record ({error.strerror or error})") from error
    return read(content, str(path), path)


def _foreign_tables(record: Record, path: Path) -> tuple[dict[str, bytes], list[str]]:
    """The sound tables beside a record of another folder, and what is wrong with the others that are there."""
    tables, problems = {}, []
    for name, numbers in TABLES.items():
        if name not in record.artifacts:
            continue
        table = path.with_name(record.artifacts[name])
        try:
            content = read_whole(table, LARGEST_TABLE_BYTES, follow_links=False)
            check_table(content, str(table), numbers)
        except FileNotFoundError:
            continue
        except OSError as error:
            problems.append(f"{table}: cannot be read as a table ({error.strerror or error}); left out")
        except UserError as error:
            problems.append(f"{error}; left out")
        else:
            tables[name] = content
    return tables, problems
