"""Render and write leaderboard tables; every format contains the same numbers."""

from __future__ import annotations

import json
import shutil
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from textwrap import wrap
from typing import TYPE_CHECKING

from lra_bench.contracts import UserError
from lra_bench.records.schema import STATUSES, Record
from lra_bench.runtime.files import replacing, why
from lra_bench.runtime.safe_text import without_formulas
from lra_bench.statistics.paired import MIN_SEEDS

from .formatting import OWN, Section, readable, rows_of, score
from .latex import latex
from .layouts import find_layout
from .sections import long_sections, with_columns
from .summary import best_rows, summary
from .table import leaderboard
from .terminal import terminal

if TYPE_CHECKING:
    import pandas as pd

SUFFIXES = {"markdown": "md", "latex": "tex", "csv": "csv", "json": "json"}
FORMATS = ("terminal", *SUFFIXES)
READ = ("terminal", "markdown", "latex")
"""Formats for readers, split into sections; the other formats contain every column."""

SCORE_COLUMNS = ("rank", "variant", "score")
MOST_OWN = 10
"""Largest number of the user's rows in ``score_table``."""
MORE_COLUMNS = "Choose columns with --columns, such as --columns score,parameters."
LEGEND = (
    f"Score: mean over seeds (each seed), or with its 95 % interval: over test examples with one seed, over seeds with "
    f"5 or more. Rows above the floor in all of {MIN_SEEDS} or more seeds have a rank. {OWN} your rows, if others are "
    "shown. Bold: best, or not shown to be worse."
)
"""Explanation of the tables in a terminal."""
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
) -> str:
    """Return a table as text in one of ``FORMATS``.

    Args:
        frame: The data of the table.
        format: One of ``FORMATS``. CSV and JSON contain every column, unrounded. The other formats contain the columns
            selected for readers, rounded.
        width: Maximum width of the terminal in characters, by default that of the current terminal.
        layout: The layout that ``frame`` belongs to.
        columns: Headings of the columns to show instead of the default selection, for the formats in ``READ``.
        if_empty: The sentence shown instead of an empty table in the formats in ``READ``, without a full stop.

    Returns:
        The text of the table.

    Raises:
        UserError: If the format, the layout or a column is unknown.
    """
    check_format(format)
    if format == "terminal" and layout == "long" and not columns and not frame.empty:
        return terminal(long_sections(frame, short=True), width or terminal_width(), f"{MORE_COLUMNS}\n\n{LEGEND}")
    sections = _sections(frame, layout) if format in READ else []
    if columns:
        sections = with_columns(sections, columns)
    return _text(frame, sections, format, layout, if_empty, width)


def terminal_width() -> int:
    """Return the width of the current terminal in characters, 100 if unknown."""
    return shutil.get_terminal_size((100, 24)).columns


def _sections(frame: pd.DataFrame, layout: str) -> list[Section]:
    return [] if frame.empty else list(find_layout(layout).sections(frame))


def _text(
    frame: pd.DataFrame, sections: Sequence[Section], format: str, layout: str, if_empty: str, width: int | None = None
) -> str:
    if format == "csv":
        return without_formulas(frame).to_csv(index=False)
    if format == "json":
        return json.dumps(rows_of(frame), indent=1, allow_nan=False) + "\n"
    kind = find_layout(layout)
    if format == "latex":
        return latex(sections, kind.note if sections else f"{if_empty}.")
    if format == "markdown":
        return _markdown(sections, kind.title, kind.note, if_empty)
    if not sections:
        return f"{if_empty}.\n"
    return terminal(sections, width or terminal_width())


def write(frame: pd.DataFrame, folder: Path, layout: str = "long", if_empty: str = NO_RECORDS) -> list[Path]:
    """Write a table to ``folder`` as markdown, LaTeX, CSV, JSON and Parquet, and return the paths.

    Each file is written atomically. ``if_empty`` is that of ``render``. Raises ``UserError`` if the folder cannot be
    written.
    """
    paths = []
    sections = _sections(frame, layout)
    try:
        for format, suffix in {**SUFFIXES, "parquet": "parquet"}.items():
            paths.append(folder / f"{find_layout(layout).file}.{suffix}")
            with replacing(paths[-1]) as path:
                if format == "parquet":
                    frame.to_parquet(path, index=False)
                else:
                    path.write_text(_text(frame, sections, format, layout, if_empty), encoding="utf-8")
    except OSError as error:
        raise UserError(f"--results {folder}: {why(error)}; choose another folder with --results") from error
    return paths


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


def _markdown(sections: Sequence[Section], title: str, note: str, if_empty: str) -> str:
    parts = [f"# {title}", note]
    for section in sections:
        table = section.table.map(lambda cell: cell.replace("|", "\\|").replace("\n", " "))
        for place, name in section.best:
            table.at[place, name] = "**" + str(table.at[place, name]) + "**"
        parts += [f"## {section.title}", table.to_markdown(index=False, disable_numparse=True), section.remark]
    return "\n\n".join(part for part in (*parts, "" if sections else f"{if_empty}.") if part) + "\n"
