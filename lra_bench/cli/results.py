"""The commands of ``lra-bench results``."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from lra_bench.progress import say

from .options import Json, Results, print_findings, print_json, print_table, root_of, rounded

app = typer.Typer(help="Import, list, check and pack records.")


@app.command("import")
def merge(
    folder: Annotated[Path, typer.Argument(help="Another results folder, such as that of another machine")],
    results: Results = None,
) -> None:
    """Import the records of another results folder.

    If both folders have a record of a cell, one with status ok is preferred, then a finished one, then the later one.
    """
    from lra_bench.records.imports import import_folder

    done = import_folder(folder, root_of(results))
    for problem in done.broken:
        say(problem)
    print(f"{done.added} added, {done.replaced} replaced, {done.kept} unchanged, {len(done.broken)} left out")


@app.command("list")
def list_records(results: Results = None, as_json: Json = False) -> None:
    """List the records with their status, their score and the version of their hash."""
    from lra_bench.records.store import existing_root, load_all

    rows = [
        {
            "record": str(r.path),
            "status": r.status,
            "score": r.score(),
            "finished": r.finished_at,
            "hash_version": r.hash_version,
        }
        for r in load_all(existing_root(results))
    ]
    if as_json:
        print_json(rows)
    else:
        print_table([{**row, "score": rounded(row["score"])} for row in rows])


@app.command()
def pack(results: Results = None) -> None:
    """Pack the records of a results folder, as boards are stored.

    All records are moved to records.jsonl and their tables to one Parquet file for each kind.
    """
    from lra_bench.records.packing import pack
    from lra_bench.records.store import existing_root

    root = existing_root(results)
    print(f"{pack(root):,} records in {root}")


@app.command()
def check(results: Results = None) -> None:
    """Check the results folder and the published numbers.

    The files, names, versions and sizes of all records are checked.
    """
    from lra_bench.records.check import check_store
    from lra_bench.records.store import existing_root
    from lra_bench.tables.published import check_published

    print_findings([*check_store(existing_root(results)), check_published()])
