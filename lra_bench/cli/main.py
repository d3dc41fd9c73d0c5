"""The command-line interface. Commands import the modules that implement them only when they are called."""

from __future__ import annotations

import difflib
import errno
import io
import os
import signal
import sys
from collections.abc import Sequence
from contextlib import suppress
from typing import Annotated, Any

import typer

from lra_bench.contracts import UserError
from lra_bench.progress import say
from lra_bench.runtime.files import why
from lra_bench.runtime.garbage import reduce_collections
from lra_bench.runtime.signals import ignore_all, raise_if_ignored

from . import data, grid
from . import results as cli_results
from . import tables as cli_tables
from .bench import bench
from .card import card
from .clean import clean
from .examples import EXAMPLES, add_examples
from .new import new
from .options import (
    ConfigDir,
    Json,
    Overrides,
    RecordName,
    Reference,
    Results,
    in_bash,
    print_findings,
    print_json,
    print_table,
    root_of,
    rounded,
)
from .profile import profile

NAME = "lra-bench"
RESUMED = ("bench", "card", "profile", "data", "evaluate")
"""Commands that resume an interrupted run when they are called again."""

app = typer.Typer(
    name=NAME,
    help="Measure sequence models on long inputs: score, speed, memory, FLOPs and extrapolation.",
    context_settings={"help_option_names": ["-h", "--help"]},
    pretty_exceptions_enable=False,
    rich_markup_mode=None,
)


def _print_version(requested: bool) -> None:
    if requested:
        from importlib.metadata import version

        print(f"{NAME} {version(NAME)}")
        raise typer.Exit


@app.callback()
def common(
    version: Annotated[
        bool, typer.Option("--version", callback=_print_version, is_eager=True, help="Print the version and exit")
    ] = False,
) -> None:
    """Handle the options before a command."""


app.command()(bench)
app.command()(card)
app.command()(profile)
app.add_typer(data.app, name="data")
app.add_typer(grid.app, name="grid")
app.add_typer(cli_results.app, name="results")


@app.command()
def evaluate(
    record: RecordName,
    lengths: Annotated[
        str | None,
        typer.Option(
            help="Lengths in tokens, such as 1000,2000; default: the training length, or with --knobs the longer "
            "lengths of the record"
        ),
    ] = None,
    knobs: Annotated[
        str | None,
        typer.Option(help="Options to change for evaluation only, such as position.scaling=yarn; ALL for every one"),
    ] = None,
    hardware: Annotated[
        str | None, typer.Option(help="Hardware option (lra-bench list hardware); default: that of the record")
    ] = None,
    write: Annotated[
        bool, typer.Option("--write/--no-write", help="Add the points to the record, or only print them")
    ] = True,
    trust: Annotated[
        list[str] | None,
        typer.Option(help="Package whose classes the record may name, in addition to lra-bench; can be repeated"),
    ] = None,
    results: Results = None,
    config_dir: ConfigDir = None,
    as_json: Json = False,
) -> None:
    """Test the best weights of a record again without training.

    They are tested at the training length or at other lengths. The new points are added to the record; earlier points
    are kept unless they are measured again.
    """
    from lra_bench.cells.reevaluate import reevaluate
    from lra_bench.measurements.lengths import curve_summaries
    from lra_bench.records.names import find_path
    from lra_bench.tables.describe import lines

    path = find_path(record, root_of(results))
    try:
        tokens = [int(length) for length in lengths.split(",")] if lengths else []
    except ValueError as error:
        raise UserError(f"--lengths {lengths}: must be integers separated by commas, such as 1000,2000") from error
    knob_names = knobs.split(",") if knobs else []
    section, points = reevaluate(path, tokens, knob_names, hardware, config_dir, write, trust or ())
    if as_json:
        print_json(points)
        return
    names = ("variant", "knob", "length", "n", "score", "low", "high", "floor_name", "floor", "skill", "retention")
    print_table([{name: rounded(dict(point)[name]) for name in (*names, "status", "reason")} for point in points])
    print(lines(curve_summaries(section)), end="")
    say(f"Added {len(points)} points to {path}." if write else "Nothing written.")


@app.command("list")
def list_options(
    kind: Annotated[
        str,
        typer.Argument(
            help="models, tasks, groups (of tasks), positions, protocols, cells, hardware, options, columns, figures …"
        ),
    ] = "models",
    name: Annotated[
        str | None,
        typer.Argument(
            help="Print everything about this one: docstring, paper, deviations; of options, columns and cells, those "
            "whose names contain it"
        ),
    ] = None,
    family: Annotated[str | None, typer.Option(help="Only models of this family, such as linear")] = None,
    causal: Annotated[bool, typer.Option("--causal", help="Only models with an exact causal form")] = False,
    config_dir: ConfigDir = None,
    as_json: Json = False,
) -> None:
    """List models, tasks and other options, table columns, or figures.

    Models are grouped by family. The columns are those of leaderboards and other tables, with their meaning. With a
    name, everything that is known of one option is printed.
    """
    from lra_bench.config.details import details, option_lines, option_list, shown
    from lra_bench.config.listing import by_family, options

    columns = kind in ("column", "columns") and family is None and not causal
    if columns:
        from lra_bench.tables.query import column_list

        rows = column_list()
    elif kind in ("option", "options"):
        rows = option_list()
    elif kind in ("figure", "figures"):
        from lra_bench.figures import all_figures

        texts = {each: figure.caption for each, figure in sorted(all_figures().items())}
        rows = [{"name": each, "description": text if name else text.split("\n")[0]} for each, text in texts.items()]
    elif name and kind not in ("cell", "cells"):
        found = details(kind, name, config_dir)
        print_json(found) if as_json else print(shown(found))
        return
    else:
        rows = options(kind, config_dir, declared=as_json, family=family, causal=causal)
    if name:
        rows = [row for row in rows if name in row["name"]]
    if as_json:
        print_json(rows)
        return
    if kind in ("option", "options"):
        print(*option_lines(rows), sep="\n")
        return
    width = max((len(row["name"]) for row in rows), default=0)
    groups: dict[str, list[dict[str, Any]]] = {"": rows}
    if kind in ("model", "models"):
        groups = by_family(rows, config_dir)
    elif columns:
        groups = {table: [row for row in rows if row["table"] == table] for table in {row["table"]: "" for row in rows}}
    for heading, group in groups.items():
        if heading:
            print(f"{heading} ({len(group)})")
        for row in group:
            print(f"{'  ' if heading else ''}{row['name']:<{width}}  {row['description']}".rstrip())


for command in (cli_tables.leaderboard, cli_tables.compare, cli_tables.plot, cli_tables.cite, clean, new):
    app.command()(command)


@app.command()
def show(
    record: RecordName,
    results: Results = None,
    reference: Reference = None,
    config_dir: ConfigDir = None,
    as_json: Json = False,
) -> None:
    """Print one record."""
    from lra_bench.records.names import find_path
    from lra_bench.records.reference import reference_root
    from lra_bench.records.store import load
    from lra_bench.tables.describe import describe

    loaded = load(find_path(record, root_of(results), reference_root(reference)))
    if as_json:
        print_json(loaded.to_dict())
    else:
        print(describe(loaded), end="")


@app.command()
def diff(
    first: Annotated[str, typer.Argument(metavar="A", help="Record, as in lra-bench show, or overrides in quotes")],
    second: Annotated[
        str | None, typer.Argument(metavar="B", help="The same; default: the command of the record A, composed today")
    ] = None,
    results: Results = None,
    reference: Reference = None,
    config_dir: ConfigDir = None,
    as_json: Json = False,
) -> None:
    """Print the options in which two cells differ, and where their values come from.

    They are those that the key of a cell covers: options, defaults in code, revisions of classes, digests of code.
    """
    from lra_bench.grid.changes import differences_of
    from lra_bench.records.reference import reference_root

    rows = differences_of(first, second, root_of(results), reference_root(reference), config_dir)
    if as_json:
        print_json(rows)
    elif rows:
        print_table(rows)
    else:
        say("No option differs.")


@app.command()
def check(overrides: Overrides = None, config_dir: ConfigDir = None) -> None:
    """Check whether a model computes what it declares: direction, padding, lengths, growth, state."""
    from lra_bench.checks.overrides import check_overrides

    print_findings(check_overrides(overrides or [], config_dir), wrong="wrong")


@app.command()
def doctor(results: Results = None) -> None:
    """Check whether this machine is suitable for measurements."""
    from .doctor import examine

    print_findings(examine(root_of(results)))


add_examples(app)


def _hint(error: Any, arguments: Sequence[str]) -> str:
    """Return an error message with a suggestion for an unknown option of a command that takes ``key=value``.

    Returns an empty string for other errors and commands.
    """
    flag, command = getattr(error, "option_name", None), getattr(getattr(error, "ctx", None), "command", None)
    if flag is None or command is None or command.name not in ("bench", "card", "profile"):
        return ""
    from lra_bench.config.hints import override_for_flag
    from lra_bench.config.validation import option_names

    if suggestion := override_for_flag(flag, arguments, option_names()):
        return f"No such option: {flag}; write {suggestion}"
    similar = difflib.get_close_matches(flag, (name for each in command.params for name in each.opts), n=1)
    advice = f"did you mean {similar[0]}?" if similar else "write key=value, for example model=performer"
    return f"No such option: {flag}; {advice}"


def _open_output() -> None:
    """Replace characters that the encoding of stdout lacks by ``?``, and discard output if stdout is closed."""
    sys.stdout = sys.stdout or open(os.devnull, "w", encoding="utf-8")  # noqa: SIM115, PTH123
    sys.stderr = sys.stderr or open(os.devnull, "w", encoding="utf-8")  # noqa: SIM115, PTH123
    if isinstance(sys.stdout, io.TextIOWrapper):
        sys.stdout.reconfigure(errors="replace")


def _discard_output() -> None:
    """Write what is left in the buffer of stdout if possible, and discard all later output."""
    with suppress(OSError):
        sys.stdout.flush()
    os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())


def main() -> None:
    """Run a command. Wrong input gives one sentence and exit code 2; a traceback is printed only with --debug."""
    arguments = [argument for argument in sys.argv[1:] if argument != "--debug"] or ["--help"]
    if "--debug" in sys.argv[1:]:
        os.environ["LRA_BENCH_DEBUG"] = "1"
    debug = bool(os.environ.get("LRA_BENCH_DEBUG"))
    reduce_collections()
    _open_output()
    with suppress(ValueError):  # not in the main thread
        signal.signal(signal.SIGTERM, signal.default_int_handler)  # raises KeyboardInterrupt, as SIGINT does
        raise_if_ignored()
    try:
        in_bash(lambda: app(args=arguments, prog_name=NAME))
        code = app(args=arguments, prog_name=NAME, standalone_mode=False)
        sys.stdout.flush()
        if code == 130:  # recent releases of typer convert KeyboardInterrupt to this exit code
            raise KeyboardInterrupt
    except UserError as error:
        if debug:
            raise
        say(f"lra-bench: {error}")
        sys.exit(2)
    except (KeyboardInterrupt, typer.Abort):
        ignore_all()
        continues = "; the same command continues where it stopped" if arguments[0] in RESUMED else ""
        say(f"lra-bench: interrupted{continues}.")
        sys.exit(130)
    except BrokenPipeError:  # the reader of the output, such as head, has ended
        _discard_output()
        sys.exit(1)
    except Exception as error:
        # Wrong arguments. Depending on its version typer depends on click or contains a copy, so that the classes of
        # its errors cannot be imported from one place.
        if hasattr(error, "format_message"):
            command = getattr(getattr(error, "ctx", None), "command_path", NAME)
            example = next(iter(EXAMPLES.get(command.removeprefix(f"{NAME} "), ())), f"{command} --help")
            message = _hint(error, arguments) or f"{error.format_message().rstrip('.')}; see {example}"
            say(f"lra-bench: {message}")
            sys.exit(2)
        if debug:
            raise
        if isinstance(error, OSError) and error.errno in (errno.EACCES, errno.ENOSPC, errno.EROFS):
            _discard_output()
            advice = "set --results or LRA_BENCH_CACHE to another folder"
            if error.filename is None:  # stdout may be the full file
                advice += ", or redirect the output to another disk"
            say(f"lra-bench: {error.filename or 'the disk'} {why(error)}; {advice}")
            sys.exit(2)
        say(f"lra-bench: {type(error).__name__}: {error} (--debug prints the traceback)")
        sys.exit(1)
    sys.exit(code if isinstance(code, int) else 0)


if __name__ == "__main__":
    main()
