"""Options shared by several commands, their completion in shells, and functions that print output."""

from __future__ import annotations

import io
import json
import os
import shlex
import shutil
import sys
from collections.abc import Callable, Iterable
from contextlib import redirect_stdout
from pathlib import Path
from typing import Annotated, Any

import typer

from lra_bench.config.groups import GROUPS, option_files
from lra_bench.config.task_groups import group_names
from lra_bench.errors import from_here
from lra_bench.runtime.findings import Finding
from lra_bench.runtime.safe_text import printable


def complete(incomplete: str) -> list[str]:
    """Complete the name of a group, or the last option of a comma list."""
    group, given, value = incomplete.partition("=")
    if not given:
        found = [name for name in GROUPS if name.startswith(group)]
        # A single completion would be followed by a space; return the options of the group instead.
        return complete(f"{found[0]}=") if len(found) == 1 else [f"{name}=" for name in found]
    if group not in GROUPS:
        return []
    before, comma, last = value.rpartition(",")
    names = (*option_files(group), *(group_names() if group == "task" else ()), "ALL")
    return [f"{group}={before}{comma}{name}" for name in names if name.startswith(last)]


Overrides = Annotated[
    list[str] | None,
    typer.Argument(
        help="key=value, such as model=performer train.lr=3e-4; several values: seed=0,1,2; all options: model=ALL; a "
        "group of tasks: task=lra",
        autocompletion=complete,
    ),
]
Results = Annotated[
    Path | None, typer.Option("--results", help="Results folder; default: $LRA_BENCH_RESULTS, or ./results")
]


def _enter(context: typer.Context, folder: Path | None) -> Path | None:
    """Make the code in a folder importable, and use its measurements, until the command ends."""
    from lra_bench.config.import_path import importable

    context.with_resource(importable(folder))
    return folder


ConfigDir = Annotated[
    Path | None,
    typer.Option(
        "--config-dir",
        envvar="LRA_BENCH_CONFIG_DIR",
        callback=_enter,
        help="Folder of your own YAML files (model/, task/ …) and code",
    ),
]
RecordName = Annotated[
    str,
    typer.Argument(
        metavar="RECORD",
        help="Record: a printed cell name, a JSON file, a folder with one record, a hash or hash prefix, or last",
    ),
]
Reference = Annotated[
    Path | None,
    typer.Option(
        "--reference",
        help="Folder of reference boards, or none; default: $LRA_BENCH_REFERENCE, or the boards of lra-bench",
    ),
]
DryRun = Annotated[
    bool, typer.Option("--dry-run", help="Print the cells with status, reason and estimated cost; run none")
]
Json = Annotated[bool, typer.Option("--json", help="Print JSON")]
Source = Annotated[str | None, typer.Option("--source", help="File or folder of raw data; same as task.source=…")]


def root_of(results: Path | None) -> Path:
    """Return the results folder: that of the option, of the environment variable, or the default."""
    from lra_bench.records.store import results_root

    return results_root(results)


def with_source(overrides: list[str] | None, source: str | None) -> list[str]:
    """Return the overrides with ``--source`` appended as ``task.source=…``."""
    return [*(overrides or []), *([f"task.source={source}"] if source else [])]


def follow_up(command: str, results: Path | None) -> str:
    """Return the command line of a next step, which reads the same results folder."""
    return f"{program()} {command}{f' --results {shlex.quote(str(results))}' if results else ''}"


def program(name: str = "lra-bench") -> str:
    """Return the command that starts a program of this installation.

    It is the path of the program if lra-bench was started by a path that is not on the PATH, otherwise its name.
    """
    called = Path(sys.argv[0])
    found = shutil.which(called.name)
    if called.name != "lra-bench" or (found and Path(found).resolve() == called.resolve()):
        return name
    return from_here(called.absolute().with_name(name))


def print_json(value: Any) -> None:
    """Print strict JSON."""
    # JSON permits an unescaped delete character, so escape it here.
    print(json.dumps(value, indent=1, allow_nan=False).replace("\x7f", r"\u007f"))


def print_table(rows: list[dict[str, Any]]) -> None:
    """Print rows as a table with their keys as headings, without empty columns; None is printed as a dash."""
    from rich.console import Console
    from rich.table import Table

    names = [name for name in rows[0] if any(row[name] != "" for row in rows)] if rows else ["no entries"]
    table = Table(box=None, pad_edge=False)
    for name in names:
        table.add_column(name, overflow="fold")
    for row in rows:
        table.add_row(*("–" if row[name] is None else printable(str(row[name])) for name in names))
    Console(width=None if sys.stdout.isatty() else 200, markup=False, emoji=False).print(table)


def print_findings(findings: Iterable[Finding], wrong: str = "PROBLEM") -> None:
    """Print findings with their verdicts and exit, with code 1 if one is ``wrong``."""
    marks = {True: "ok", False: wrong, None: ""}
    failed = False
    for finding in findings:
        failed |= finding.ok is False
        print(f"{marks[finding.ok]:<8}{finding.what}{': ' if finding.found else ''}{printable(finding.found)}")
    raise typer.Exit(1 if failed else 0)


def rounded(value: Any) -> Any:
    """Format a float with four decimal places; return any other value unchanged."""
    return f"{value:.4f}" if isinstance(value, float) else value


def in_bash(answer: Callable[[], object]) -> None:
    """Handle a completion request from bash, which splits ``key=value`` into three words and completes the last.

    ``answer`` prints the completions for the words in the environment. It is called only for words that contain ``=``.
    """
    if os.environ.get("_LRA_BENCH_COMPLETE") != "complete_bash":
        return
    try:
        words = os.environ["COMP_WORDS"].split("\n")
        cursor = int(os.environ["COMP_CWORD"])
    except (KeyError, ValueError):
        return
    start = next((place - 1 for place in (cursor, cursor - 1) if 1 < place < len(words) and words[place] == "="), None)
    if start is None:
        return
    prefix = f"{words[start]}="
    joined = prefix + "".join(words[start + 2 : cursor + 1])
    os.environ["COMP_WORDS"] = "\n".join([*map(shlex.quote, words[:start]), joined])
    os.environ["COMP_CWORD"] = str(start)
    answers = io.StringIO()
    try:
        with redirect_stdout(answers):
            answer()
    finally:
        sys.stdout.writelines(f"{line.removeprefix(prefix)}\n" for line in answers.getvalue().splitlines())
