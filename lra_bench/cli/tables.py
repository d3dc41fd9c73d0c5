"""The commands that create tables, comparisons and figures from all records."""

from __future__ import annotations

from contextlib import closing
from pathlib import Path
from textwrap import fill
from typing import Annotated, Any

import typer

from lra_bench.contracts import UserError
from lra_bench.progress import say
from lra_bench.runtime.safe_text import printable

from .options import ConfigDir, Json, Reference, Results, print_json, root_of

HTML = "html"
Protocol = Annotated[str | None, typer.Option(help="Only this protocol; smoke is included only if it is named here")]
Task = Annotated[str | None, typer.Option(help="Only this task or group of tasks (lra-bench list groups)")]
HIDDEN = "also of earlier protocol versions, modified protocols and searched rates at an end of the grid"


def leaderboard(
    results: Results = None,
    reference: Reference = None,
    protocol: Protocol = None,
    task: Task = None,
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
            help="terminal, markdown, latex, csv, json, or html (a page with the layouts long, wide and published)"
        ),
    ] = "terminal",
    columns: Annotated[
        str | None, typer.Option(help="Headings of the columns to show, such as score,floor,parameters; default: all")
    ] = None,
    against: Annotated[
        str | None,
        typer.Option(help="Variant that every row is compared with, such as local; default: transformer"),
    ] = None,
    everything: Annotated[
        bool,
        typer.Option(
            "--all",
            help=f"Show all tables in the terminal, {HIDDEN}; other formats always contain them",
        ),
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
            "--write", help="Write all layouts to the results folder: .md, .tex, .csv, .json, .parquet, .html"
        ),
    ] = False,
    config_dir: ConfigDir = None,
) -> None:
    """Print or write the leaderboard of all records.

    Without options the terminal shows the best rows of each task and yours; --task shows one task in full.
    """
    import pandas as pd

    from lra_bench.page.page import page, write_page
    from lra_bench.records.reference import load_records
    from lra_bench.records.store import check_writable
    from lra_bench.tables import export
    from lra_bench.tables.layouts import LAYOUTS, find_layout
    from lra_bench.tables.naming import current, explain_hidden, select
    from lra_bench.tables.published import load_published
    from lra_bench.tables.sections import check_columns
    from lra_bench.tables.summary import summary
    from lra_bench.tracking.reading import load_project

    chosen = find_layout(layout or "long")
    text_format = export.check_format("json" if as_json else format, (*export.FORMATS, HTML))
    if text_format == HTML and layout:
        raise UserError(f"--layout {layout}: an HTML page contains long, wide and published; leave --layout out")
    if columns and text_format not in export.READ:
        raise UserError(
            f"--columns {columns}: {text_format} always contains every column; choose {', '.join(export.READ)}"
        )
    if from_wandb is None:
        root, found = load_records(results, reference)
    else:
        root, found = root_of(results), load_project(from_wandb)
    records, explanation = select(found, task, protocol), explain_hidden(found, task, protocol)
    headings = [each.strip() for each in columns.split(",")] if columns else []
    check_columns(headings, records, layout or "long")
    own_numbers = load_published(published) if published else None
    if_empty = explanation or export.NO_RECORDS
    all_layouts = write or text_format == HTML
    in_terminal = text_format == "terminal" and bool(records)
    brief = in_terminal and not any((task, protocol, layout, columns, against, everything))
    hides = in_terminal and not (protocol or everything) and (layout or "long") in ("long", "wide")
    shown, hidden = current(records) if hides else (records, "")
    wanted = {name: each for name, each in LAYOUTS.items() if all_layouts or (each is chosen and not brief)}
    reference_row = against if records else None
    if write:
        check_writable(root)
    frames: dict[str, Any] = {}
    for name, each in wanted.items():
        frames[name] = each.make(records if all_layouts else shown, reference_row, frames.get("long"))
        if name == "published" and own_numbers is not None:
            frames[name] = pd.concat([frames[name], own_numbers], ignore_index=True)
    if write:
        for name, frame in frames.items():
            for path in export.write(frame, root, name, if_empty):
                say(f"wrote {path}")
        say(f"wrote {write_page(records, frames, root, if_empty)}")
    if text_format == HTML:
        print(page(records, frames, if_empty), end="")
    elif brief:
        print(summary(shown, export.terminal_width(), hidden), end="")
    else:
        name = layout or "long"
        frame = chosen.make(shown, reference_row) if write and hidden else frames[name]
        if explanation and frame.empty and text_format not in export.READ:
            say(f"{explanation}.")
        print(export.render(frame, text_format, layout=name, columns=headings, if_empty=if_empty), end="")
        if hidden:
            print(f"\n{fill(hidden, export.terminal_width())}")


def compare(
    a: Annotated[
        str,
        typer.Argument(
            metavar="A",
            help='Variant, such as performer or "performer features=64 rope", or one of its records: cell, hash, '
            "folder, last",
        ),
    ],
    b: Annotated[str, typer.Argument(metavar="B", help="Variant to compare with, in the same form")],
    results: Results = None,
    reference: Reference = None,
    task: Task = None,
    protocol: Protocol = None,
    as_json: Json = False,
) -> None:
    """Compare two variants, paired over seeds and test examples.

    The report states which differences are significant according to their records.
    """
    from lra_bench.tables.comparison import compare_stored
    from lra_bench.tables.verdicts import report

    name_a, name_b, found = compare_stored(a, b, results, reference, task, protocol)
    if as_json:
        print_json([{"a": name_a, "b": name_b, **each.as_dict()} for each in found])
    else:
        print(report(name_a, name_b, found), end="")


def plot(
    name: Annotated[str, typer.Argument(help="Figure, such as ranks or speed_vs_length, or all")] = "all",
    results: Results = None,
    reference: Reference = None,
    task: Task = None,
    protocol: Protocol = None,
    width: Annotated[str, typer.Option(help="Width in columns of a paper: one or two")] = "two",
    output: Annotated[Path | None, typer.Option(help="Output folder; default: figures/ in the results folder")] = None,
    everything: Annotated[bool, typer.Option("--all", help=f"Draw all records, {HIDDEN}")] = False,
    models: Annotated[str, typer.Option(help="Only these models, in this order, such as s4d,mamba2")] = "",
    config_dir: ConfigDir = None,
) -> None:
    """Draw figures of the records, as PDF, PNG and CSV, with captions."""
    from lra_bench.figures.stored import draw_stored

    chosen = [model for model in models.split(",") if model]
    drawn = draw_stored(name, results, reference, task, protocol, width, output, everything, chosen)
    with closing(drawn) as paths:
        for path in paths:
            print(printable(str(path)))
