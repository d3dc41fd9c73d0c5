"""The commands that create tables, comparisons and figures from all records."""

from __future__ import annotations

from contextlib import closing
from pathlib import Path
from textwrap import fill
from typing import TYPE_CHECKING, Annotated

import typer

from lra_bench.contracts import UserError
from lra_bench.progress import say
from lra_bench.runtime.safe_text import printable

from .options import ConfigDir, Json, Reference, Results, print_json, print_table, root_of

if TYPE_CHECKING:
    import pandas as pd

    from lra_bench.records.schema import Record

HTML = "html"
Protocol = Annotated[str | None, typer.Option(help="Only this protocol; smoke is included only if it is named here")]
Tasks = Annotated[
    str,
    typer.Option(
        "--tasks", "--task", help="Only these tasks or groups of tasks (lra-bench list groups), in this order: text,lra"
    ),
]
Models = Annotated[str, typer.Option(help="Only these models, in this order, such as s4d,mamba2")]
HIDDEN = "also of earlier protocol versions, modified protocols and searched rates at an end of the grid"


def leaderboard(
    results: Results = None,
    reference: Reference = None,
    protocol: Protocol = None,
    tasks: Tasks = "",
    models: Models = "",
    layout: Annotated[
        str | None,
        typer.Option(
            help="long (default): a row per task; wide: a column per task; published: numbers from papers; "
            "reproduction: protocol small compared with published numbers"
        ),
    ] = None,
    format: Annotated[
        str,
        typer.Option(
            help="terminal, markdown, csv, json, latex (a table of systems and tasks, and systems.bib), or html (a "
            "page with the layouts long, wide and published)"
        ),
    ] = "terminal",
    columns: Annotated[
        str | None, typer.Option(help="Headings of the columns to show, such as score,floor,parameters; default: all")
    ] = None,
    against: Annotated[
        str | None, typer.Option(help="Variant that every row is compared with, such as local; default: transformer")
    ] = None,
    everything: Annotated[
        bool, typer.Option("--all", help=f"Show all tables in the terminal, {HIDDEN}; other formats always do")
    ] = False,
    as_json: Json = False,
    from_wandb: Annotated[
        str | None,
        typer.Option(
            "--from-wandb", metavar="ENTITY/PROJECT", help="Read the records from a W&B project instead of the folder"
        ),
    ] = None,
    published: Annotated[
        Path | None,
        typer.Option(
            envvar="LRA_BENCH_PUBLISHED",
            help="Folder of your own CSV files of published numbers, which are added to the layout published",
        ),
    ] = None,
    write: Annotated[
        bool,
        typer.Option(
            "--write",
            help="Write all layouts to the results folder (.md, .csv, .json, .parquet), the page (.html), and per "
            "protocol a LaTeX table (.tex, systems.bib)",
        ),
    ] = False,
    config_dir: ConfigDir = None,
) -> None:
    """Print or write the leaderboard of all records.

    Without options the terminal shows the best rows of each task and yours; --tasks shows tasks in full. LaTeX contains
    the protocol quick, or the one with most records, unless --protocol names another.
    """
    import pandas as pd

    from lra_bench.records.reference import load_records
    from lra_bench.records.store import check_writable
    from lra_bench.tables import export
    from lra_bench.tables.bibliography import FILE, bibliography, papers
    from lra_bench.tables.formatting import terminal_width
    from lra_bench.tables.layouts import LAYOUTS, find_layout
    from lra_bench.tables.naming import current, explain_hidden, names_of, select, task_order
    from lra_bench.tables.overview import systems
    from lra_bench.tables.published import load_published
    from lra_bench.tables.sections import check_columns
    from lra_bench.tables.summary import default_protocol, summary
    from lra_bench.tracking.reading import load_project

    text_format = export.check_format("json" if as_json else format, (*export.FORMATS, HTML))
    name = layout or ("wide" if text_format == "latex" else "long")
    find_layout(name)  # raises UserError if there is none
    if text_format == "latex":
        export.check_latex(name)
    if text_format == HTML and layout:
        raise UserError(f"--layout {layout}: an HTML page contains long, wide and published; leave --layout out")
    if columns and text_format not in export.READ:
        raise UserError(f"--columns {columns}: {text_format} has columns of its own; choose {', '.join(export.READ)}")
    if from_wandb is None:
        root, found = load_records(results, reference)
    else:
        root, found = root_of(results), load_project(from_wandb)
    if name == "published":
        records, explanation, order = found, "", names_of(tasks)
    else:
        records, explanation = select(found, tasks, protocol, models), explain_hidden(found, tasks, protocol)
        order = task_order(records, tasks)
    headings = names_of(columns)
    check_columns(headings, records, name)
    own_numbers = load_published(published) if published else None
    if_empty = explanation or export.NO_RECORDS
    in_terminal = text_format == "terminal" and bool(records)
    brief = in_terminal and not any((tasks, models, protocol, layout, columns, against, everything))
    hides = in_terminal and not (protocol or everything) and name in ("long", "wide")
    shown, hidden = current(records) if hides else (records, "")
    if text_format == "latex" and records and not protocol:
        shown = [record for record in records if record.key.protocol == default_protocol(records)]

    def arranged(layout: str, frame: pd.DataFrame) -> pd.DataFrame:
        own = layout != "published" or name == "published"
        return LAYOUTS[layout].arranged(frame, order, names_of(models)) if own else frame

    def table(layout: str, records: list[Record], long: pd.DataFrame | None = None) -> pd.DataFrame:
        frame = LAYOUTS[layout].make(records, against if records else None, long)
        if layout == "published" and own_numbers is not None:
            frame = pd.concat([frame, own_numbers], ignore_index=True)
        return arranged(layout, frame)

    cited = papers(config_dir=config_dir) if write or text_format == "latex" else {}
    if write:
        check_writable(root)
    frames: dict[str, pd.DataFrame] = {}
    for each in LAYOUTS if write or text_format == HTML else ():
        frames[each] = table(each, records, frames.get("long"))
    if write:
        from lra_bench.page.page import write_page  # imports matplotlib

        written = [path for each, frame in frames.items() for path in export.write(frame, root, each, if_empty)]
        one_row = arranged("wide", systems(frames["wide"])) if records else frames["wide"]
        written += export.write_latex(one_row, root, cited, if_empty)
        for path in (*written, write_page(records, frames, root, if_empty)):
            say(f"wrote {path}")
    if text_format == HTML:
        from lra_bench.page.page import page

        print(page(records, frames, if_empty), end="")
    elif brief:
        print(summary(shown, terminal_width(), hidden), end="")
    else:
        frame = table(name, shown)
        if explanation and frame.empty and text_format in ("csv", "json"):
            say(f"{explanation}.")
        keys = {model: paper.key for model, paper in cited.items()}
        if name == "wide" and text_format in ("latex", "terminal") and len(frame):
            frame = arranged("wide", systems(frame))
        print(export.render(frame, text_format, None, name, headings, if_empty, keys), end="")
        if text_format == "latex" and not write:
            [path] = export.write_files({FILE: bibliography(cited.values())}, root)
            say(f"wrote {path}")
        if hidden:
            print(f"\n{fill(hidden, terminal_width())}")


def cite(
    models: Annotated[list[str] | None, typer.Argument(metavar="[MODEL]...", help="Models; default: all")] = None,
    config_dir: ConfigDir = None,
) -> None:
    """Print BibTeX entries of the papers of models, whose keys the LaTeX tables cite."""
    from lra_bench.tables.bibliography import bibliography, papers

    print(bibliography(papers(models or (), config_dir).values()), end="")


def compare(
    a: Annotated[
        str | None,
        typer.Argument(
            metavar="A",
            help='Variant, such as performer or "performer features=64 rope", or one of its records: cell, hash, '
            "folder, last",
        ),
    ] = None,
    b: Annotated[str | None, typer.Argument(metavar="B", help="Variant to compare with, in the same form")] = None,
    results: Results = None,
    reference: Reference = None,
    tasks: Tasks = "",
    protocol: Protocol = None,
    base: Annotated[
        Path | None,
        typer.Option(help="Results folder of another checkout: compare its cells with the same ones of --results"),
    ] = None,
    fail_if: Annotated[
        str | None,
        typer.Option(help='With --base: exit with code 1 if this is true of a cell, as in "score<-1 or speed<0.95"'),
    ] = None,
    format: Annotated[str, typer.Option(help="With --base: terminal or markdown")] = "terminal",
    as_json: Json = False,
) -> None:
    """Compare two variants, paired over seeds and test examples, or with --base two checkouts, cell by cell.

    The report on variants states which differences are significant according to their records. That on checkouts
    contains the change of the score in points, negative if it is worse, and ratios of speeds, memory and parameters.
    """
    from lra_bench.tables.comparison import compare_stored, report

    if base is not None:
        if a is not None or reference is not None or tasks or protocol:
            raise UserError(
                f"--base {base}: compares all cells of two folders; leave out A, B, --reference, --tasks and --protocol"
            )
        _compare_checkouts(base, results, fail_if, "json" if as_json else format)
        return
    if fail_if is not None or format != "terminal":
        raise UserError(f"--{'format' if fail_if is None else 'fail-if'}: compares two checkouts; set --base, too")
    if a is None or b is None:
        raise UserError("compare: name two variants, such as lra-bench compare performer local, or set --base")
    name_a, name_b, found = compare_stored(a, b, results, reference, tasks, protocol)
    if as_json:
        print_json([{"a": name_a, "b": name_b, **each.as_dict()} for each in found])
    else:
        print(report(name_a, name_b, found), end="")


def _compare_checkouts(base: Path, head: Path | None, fail_if: str | None, format: str) -> None:
    from lra_bench.tables.condition import Condition
    from lra_bench.tables.export import check_format
    from lra_bench.tables.regression import changes, markdown, rows, verdict

    check_format(format, ("terminal", "markdown", "json"))
    condition = None if fail_if is None else Condition(fail_if)
    found = changes(base, head, condition)
    if format == "json":
        print_json([each.as_dict() for each in found])
    elif format == "markdown":
        print(markdown(found, condition), end="")
    else:
        print_table(rows(found))
        print(verdict(found, condition))
    if any(each.fails for each in found):
        raise typer.Exit(1)


def plot(
    name: Annotated[str, typer.Argument(help="Figures, such as ranks,heat_map, or all")] = "all",
    results: Results = None,
    reference: Reference = None,
    tasks: Tasks = "",
    protocol: Protocol = None,
    width: Annotated[str, typer.Option(help="Width in columns of a paper: one or two")] = "two",
    output: Annotated[Path | None, typer.Option(help="Output folder; default: figures/ in the results folder")] = None,
    everything: Annotated[bool, typer.Option("--all", help=f"Draw all records, {HIDDEN}")] = False,
    models: Models = "",
    font: Annotated[str, typer.Option(help="Font of all text: sans-serif or serif")] = "sans-serif",
    config_dir: ConfigDir = None,
) -> None:
    """Draw figures of the records, as PDF, PNG and CSV, with captions."""
    from lra_bench.figures import draw_stored

    drawn = draw_stored(name, results, reference, tasks, protocol, width, output, everything, models, font)
    with closing(drawn) as paths:
        for path in paths:
            print(printable(str(path)))
