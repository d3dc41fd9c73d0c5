"""The commands of ``lra-bench results``."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from lra_bench.progress import say

from .options import Json, Results, print_findings, print_json, print_table, root_of, rounded

if TYPE_CHECKING:
    from lra_bench.records.hub import Transfer

app = typer.Typer(help="Import, list, check, pack, push and pull records.")

Repo = Annotated[str, typer.Argument(help="Data set of the Hugging Face Hub, such as user/boards")]
DryRun = Annotated[bool, typer.Option("--dry-run", help="Print files and sizes, and change nothing")]


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
    """List the records with their status, test score and validation score."""
    from lra_bench.records.store import existing_root, load_all

    rows = [
        {
            "record": str(r.key),
            "status": r.status,
            "score": r.score(),
            "validation": r.score("validation"),
            "finished": r.finished_at,
        }
        for r in load_all(existing_root(results))
    ]
    if as_json:
        print_json(rows)
    else:
        print_table([row | {name: rounded(row[name]) for name in ("score", "validation")} for row in rows])


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
def push(
    repo: Repo,
    results: Results = None,
    board: Annotated[
        str | None, typer.Option("--board", help="Name of the board; default: that of the results folder")
    ] = None,
    pull_request: Annotated[bool, typer.Option("--pull-request", help="Open a pull request of the data set")] = False,
    dry_run: DryRun = False,
) -> None:
    """Push a packed results folder to a data set of the Hugging Face Hub.

    The token is the one that hf auth login stores. The folder is checked first, and no record of the data set is
    changed or removed.
    """
    from lra_bench.records.hub import push

    root = root_of(results)
    transfers, url = push(root, repo, board or root.name, pull_request, dry_run)
    _print_transfers(transfers)
    print(url, end="\n" if url else "")


@app.command()
def pull(
    repo: Repo,
    to: Annotated[Path, typer.Option("--to", help="Folder of boards, for --reference")] = Path("boards"),
    revision: Annotated[
        str | None, typer.Option("--revision", help="Branch, commit or pull request (refs/pr/1) of the data set")
    ] = None,
    dry_run: DryRun = False,
) -> None:
    """Pull the boards of a data set of the Hugging Face Hub.

    Each board is checked as by results check before it is written. No record in the folder is changed or removed.
    """
    from lra_bench.records.hub import pull

    _print_transfers(pull(repo, to, revision, dry_run))


def _print_transfers(transfers: list[Transfer]) -> None:
    sizes = sum(each.size_bytes for each in transfers if each.status == "new")
    print_table([{"file": each.file, "bytes": f"{each.size_bytes:,}", "status": each.status} for each in transfers])
    print(f"{sizes / 2**20:,.1f} MiB in new files")


@app.command()
def schema() -> None:
    """Print the JSON Schema of a record."""
    from lra_bench.records.schema import record_schema

    print_json(record_schema())


@app.command()
def check(results: Results = None) -> None:
    """Check the results folder and the published numbers.

    The files, names, versions and sizes of all records are checked.
    """
    from lra_bench.records.check import check_store
    from lra_bench.records.store import existing_root
    from lra_bench.tables.published import check_published

    print_findings([*check_store(existing_root(results)), check_published()])
