"""Options that several commands share, and how commands print."""

from __future__ import annotations

import json
import sys
from collections.abc import Iterable
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from lra_bench.contracts import UserError
from lra_bench.runtime.findings import Finding
from lra_bench.runtime.safe_text import printable

from .completion import override

if TYPE_CHECKING:
    from lra_bench.records.schema import Record

Overrides = Annotated[
    list[str] | None,
    typer.Argument(
        help="key=value, as model=performer task=listops train.lr=3e-4; lists as seed=0,1,2; model=ALL",
        autocompletion=override,
    ),
]
Results = Annotated[Path | None, typer.Option("--results", help="Results folder ($LRA_BENCH_RESULTS, ./results)")]
ConfigDir = Annotated[Path | None, typer.Option("--config-dir", help="Your folder of model/, task/ … YAML and code")]
RecordName = Annotated[
    str,
    typer.Argument(
        metavar="RECORD",
        help="A record: its cell as printed, the path of its JSON, a folder with one, a hash or its beginning, or last",
    ),
]
Reference = Annotated[
    Path | None,
    typer.Option(
        "--reference",
        help="Folder of reference boards ($LRA_BENCH_REFERENCE, else results/reference of the checkout), or none",
    ),
]
Json = Annotated[bool, typer.Option("--json", help="Print JSON")]
Source = Annotated[str | None, typer.Option("--source", help="Raw data, instead of task.source=…")]


def root_of(results: Path | None) -> Path:
    """The results folder that the option, the environment or the default names."""
    from lra_bench.records.store import results_root

    return results_root(results)


def read_from(results: Path | None) -> Path:
    """The results folder to read; raises ``UserError`` where the option names one that does not exist.

    The default folder is made by the first run, so it may be missing.
    """
    if results is not None and not results.expanduser().is_dir():
        raise UserError(f"--results {results}: there is no such folder; name the folder that holds runs/")
    return root_of(results)


def records_of(results: Path | None, reference: Path | None) -> tuple[Path, list[Record]]:
    """The results folder, and the records in it followed by those of the reference boards."""
    from lra_bench.records.reference import load_reference, reference_root
    from lra_bench.records.store import load_all

    root = read_from(results)
    return root, [*load_all(root), *load_reference(reference_root(reference), root)]


def with_source(overrides: list[str] | None, source: str | None) -> list[str]:
    """Overrides with ``--source`` as one of them."""
    return [*(overrides or []), *([f"task.source={source}"] if source else [])]


def print_json(value: Any) -> None:
    """Print strict JSON."""
    # JSON may hold the delete character as it is.
    print(json.dumps(value, indent=1, allow_nan=False).replace("\x7f", r"\u007f"))


def print_table(rows: list[dict[str, Any]]) -> None:
    """Print rows as a table headed by their names; unknown values as a dash."""
    from rich.console import Console
    from rich.table import Table

    table = Table(*rows[0] if rows else ["nothing"], box=None, pad_edge=False)
    for row in rows:
        table.add_row(*("–" if value is None else printable(str(value)) for value in row.values()))
    Console(width=None if sys.stdout.isatty() else 200, markup=False, emoji=False).print(table)


def print_findings(findings: Iterable[Finding]) -> None:
    """Print findings with their verdicts; exit code 1 where one is a problem."""
    marks = {True: "ok", False: "PROBLEM", None: ""}
    bad = False
    for finding in findings:
        bad |= finding.ok is False
        print(f"{marks[finding.ok]:<8}{finding.what}: {printable(finding.found)}")
    raise typer.Exit(1 if bad else 0)


def rounded(value: Any) -> Any:
    """Floats to four places, everything else as it is."""
    return f"{value:.4f}" if isinstance(value, float) else value
