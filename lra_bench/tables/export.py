"""Render and write leaderboard tables; every format contains the same numbers."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from textwrap import wrap
from types import MappingProxyType

import pandas as pd

from lra_bench.contracts import UserError
from lra_bench.records.schema import STATUSES, Record
from lra_bench.runtime.files import replacing, why
from lra_bench.runtime.safe_text import without_formulas
from lra_bench.statistics.paired import MIN_SEEDS

from .bibliography import FILE, Paper, bibliography
from .formatting import AT_FLOOR, OWN, Section, readable, rows_of, score, terminal_width
from .latex import latex, ranked
from .layouts import find_layout
from .sections import long_sections, with_columns
from .seeds import printed
from .summary import best_rows, summary
from .table import leaderboard
from .terminal import terminal

SUFFIXES = {"markdown": "md", "csv": "csv", "json": "json"}
FORMATS = ("terminal", "markdown", "latex", "csv", "json")
READ = ("terminal", "markdown")
"""Formats for readers, split into sections, whose columns can be chosen."""

SCORE_COLUMNS = ("rank", "variant", "score")
MOST_OWN = 10
"""Largest number of the user's rows in ``score_table``."""
LEGENDS = {
    "long": "Choose columns with --columns, such as --columns score,parameters.\n\n"
    "Score: mean over seeds (each seed), or with its 95 % interval: over test examples with one seed, over seeds with "
    f"5 or more. Rows above the floor in all of {MIN_SEEDS} or more seeds have a rank. {OWN} your rows, if others are "
    "shown. Bold: best, or not shown to be worse.",
    "wide": "Choose tasks with --tasks, such as --tasks listops,text.\n\n"
    f"Mean score over seeds; {AT_FLOOR} no seed shown to exceed the floor, empty: not measured. Mean skill: score "
    f"normalised so that the strongest floor is 0 and a perfect score is 1. {OWN} your rows, if others are shown. "
    "Bold: best, or not shown to be worse.",
}
"""What follows tables in a terminal whose columns may be left out, by layout."""
COMPARED = "compared with "
NO_RECORDS = "No records yet; create one with lra-bench bench"
"""Sentence shown instead of an empty table, without a full stop."""


def check_format(name: str, formats: Sequence[str] = FORMATS) -> str:
    """Return ``name`` if it is one of ``formats``. Raises ``UserError`` otherwise."""
    if name not in formats:
        raise UserError(f"--format {name}: choose {', '.join(formats)}")
    return name


def render(
    frame: pd.DataFrame,
    format: str = "terminal",
    width: int | None = None,
    layout: str = "long",
    columns: Sequence[str] = (),
    if_empty: str = NO_RECORDS,
    keys: Mapping[str, str] = MappingProxyType({}),
) -> str:
    r"""Return a table as text in one of ``FORMATS``.

    CSV and JSON contain every column, unrounded. The terminal and Markdown contain the columns selected for readers,
    rounded. LaTeX contains one table per protocol, of the layout ``wide`` only.

    Args:
        frame: The data of the table.
        format: One of ``FORMATS``.
        width: Maximum width of the terminal in characters, by default that of the current terminal.
        layout: The layout that ``frame`` belongs to.
        columns: Headings of the columns to show instead of the default selection, for the formats in ``READ``.
        if_empty: The sentence shown instead of an empty table, without a full stop; CSV and JSON do not contain it.
        keys: Keys for ``\cite`` in LaTeX by name of the model.

    Raises:
        UserError: If the format, the layout or a column is unknown, or if LaTeX has no such layout.
    """
    check_format(format)
    if format == "latex":
        check_latex(layout)
        nothing = f"{if_empty}." if frame.empty else "All rows are of modified protocols, which are not ranked."
        return latex(frame, keys) if any(ranked(frame)) else f"% {nothing}\n"
    if format == "csv":
        return without_formulas(printed(frame)).to_csv(index=False)
    if format == "json":
        return json.dumps(rows_of(printed(frame)), indent=1, allow_nan=False) + "\n"
    kind = find_layout(layout)
    short = format == "terminal" and layout in LEGENDS and not columns
    sections = [] if frame.empty else [*(kind.sections(frame, short=True) if short else kind.sections(frame))]
    sections = with_columns(sections, columns) if columns else sections
    if format == "markdown":
        return _markdown(sections, kind.title, kind.note) if sections else f"<!-- {if_empty}. -->\n"
    note = LEGENDS[layout] if short else ""
    return terminal(sections, width or terminal_width(), note) if sections else f"{if_empty}.\n"


def check_latex(layout: str) -> None:
    """Raise ``UserError`` if there is no LaTeX table of the layout."""
    if layout != "wide":
        raise UserError(f"--layout {layout}: LaTeX contains one table of systems and tasks; leave --layout out")


def write(frame: pd.DataFrame, folder: Path, layout: str = "long", if_empty: str = NO_RECORDS) -> list[Path]:
    """Write a table to ``folder`` as Markdown, CSV, JSON and Parquet, like ``write_files``; see ``render``."""
    name = find_layout(layout).file
    texts = {
        f"{name}.{suffix}": render(frame, format, layout=layout, if_empty=if_empty)
        for format, suffix in SUFFIXES.items()
    }
    return write_files({**texts, f"{name}.parquet": printed(frame)}, folder)


def write_latex(
    frame: pd.DataFrame, folder: Path, papers: Mapping[str, Paper], if_empty: str = NO_RECORDS
) -> list[Path]:
    """Write the LaTeX table of each protocol, from the data of the layout ``wide``, and the BibTeX entries they cite.

    ``papers`` are those of each model. See ``write_files`` and ``render``.
    """
    name = find_layout("long").file
    tables = {f"{name}-{protocol}.tex": rows for protocol, rows in ranked(frame)} or {f"{name}.tex": frame}
    keys = {model: paper.key for model, paper in papers.items()}
    texts = {file: render(rows, "latex", None, "wide", (), if_empty, keys) for file, rows in tables.items()}
    return write_files({**texts, **({FILE: bibliography(papers.values())} if papers else {})}, folder)


def write_files(files: Mapping[str, str | pd.DataFrame], folder: Path) -> list[Path]:
    """Write texts, and tables as Parquet, to a folder and return their paths.

    Each file is written atomically. Raises ``UserError`` if the folder cannot be written.
    """
    try:
        for name, content in files.items():
            with replacing(folder / name) as path:
                if isinstance(content, str):
                    path.write_text(content, encoding="utf-8")
                else:
                    content.to_parquet(path, index=False)
    except OSError as error:
        raise UserError(f"--results {folder}: {why(error)}; choose another folder with --results") from error
    return [folder / name for name in files]


def row_for(record: Record, width: int | None = None) -> str:
    """Return the leaderboard row of one run, followed by its floors and, if it is not ok, its status."""
    width = width or terminal_width()
    lines = [terminal(long_sections(leaderboard([record]), short=True), width).rstrip()]
    if record.floors:
        floors = " · ".join(f"{readable(name)} {score(value, record.metric)}" for name, value in record.floors.items())
        lines += wrap(f"Floors (baselines without a model): {floors}", width)
    if record.status != "ok":
        lines.append(f"Status {record.status}: {record.reason or STATUSES[record.status]}")
    return "\n".join(lines) + "\n"


def score_table(records: Sequence[Record], width: int | None = None) -> str:
    """Return the scores of the user's records and the best rows above the floor, without modified protocols.

    Records of several tasks or protocols are summarised with a line per task.
    """
    unchanged = [record for record in records if not record.protocol_modified]
    frame, width = leaderboard(unchanged), width or terminal_width()
    sections = list(long_sections(frame, short=True))
    if len(sections) > 1:
        return summary(unchanged, width)
    best, own = best_rows(rows_of(frame), MOST_OWN)
    table = sections[0].table
    kept = [name for name in table if name in SCORE_COLUMNS or str(name).startswith(COMPARED)]
    shown = replace(sections[0], table=table.loc[sorted((*best, *own)), kept], remark=f"{OWN} your rows.")
    return terminal([shown], width)


def _markdown(sections: Sequence[Section], title: str, note: str) -> str:
    parts = [f"# {title}", note]
    for section in sections:
        table = section.table.map(lambda cell: cell.replace("|", "\\|").replace("\n", " "))
        for place, name in section.best:
            if name in table:
                table.at[place, name] = "**" + str(table.at[place, name]) + "**"
        parts += [f"## {section.title}", table.to_markdown(index=False, disable_numparse=True), section.remark]
    return "\n\n".join(filter(None, parts)) + "\n"
