"""Render tables for a terminal of a given width."""

from __future__ import annotations

import sys
from collections.abc import Iterable
from dataclasses import replace
from io import StringIO
from textwrap import fill

from rich.box import SIMPLE_HEAD
from rich.console import Console
from rich.table import Table
from rich.text import Text

from .formatting import Section, fitting

NARROW = 60
"""Width in characters below which a table is printed as a list."""
WIDEST_NAME = 30
"""Largest width in characters of the column of names in an optional table; longer names are wrapped."""


def terminal(sections: Iterable[Section], width: int, note: str = "") -> str:
    """Return the sections as text of at most ``width`` characters per line.

    A table that is too wide is split into groups of columns, or loses its last columns if it is ``optional``; then
    ``note`` follows the headings of those columns. Below ``NARROW`` characters each row is printed as a list.
    """
    stream = StringIO()
    console = Console(file=stream, width=width, force_terminal=sys.stdout.isatty(), highlight=False)
    left_out: dict[str, None] = {}
    printed: set[str] = set()
    for section in sections:
        widths = {str(name): _width(section, str(name)) for name in section.table.columns}
        if width < NARROW:
            _print_list(console, section)
            groups = []
        elif section.optional:
            shown: list[str] = []
            for name in widths:
                if not shown or sum(widths[each] for each in (*shown, name)) < width:
                    shown.append(name)
                else:
                    left_out[name] = None
            printed.update(shown)
            groups = [shown]
        else:
            head = next((name for name in section.heads if name in widths), next(iter(widths)))
            groups = fitting(widths, width - 1, head)
        for place, columns in enumerate(groups):
            rows = section.table[columns]
            known = (rows.drop(columns=columns[0]) != "").any(axis=1) if place else slice(None)
            title = f"{section.title}{', continued' if place else ''}"
            _print_table(console, replace(section, title=title, table=rows.loc[known]))
        if section.remark:
            console.print(Text(f"{section.remark}\n"))
    if note and (never := [name for name in left_out if name not in printed]):
        console.print(Text(f"Left out: {', '.join(never)}. {note}"))
    return "\n".join(line.rstrip() for line in stream.getvalue().splitlines()).strip("\n") + "\n"


def _width(section: Section, name: str) -> int:
    """Return the width of a column in characters, including padding, with its heading wrapped at spaces.

    Names of rows in an ``optional`` table are wrapped too.
    """
    cells = max(map(len, section.table[name]))
    if section.optional and name in section.heads:
        cells = min(cells, WIDEST_NAME)
    return max(max(map(len, name.split(" "))), cells) + 2


def _print_table(console: Console, section: Section) -> None:
    rich_table = Table(box=SIMPLE_HEAD, padding=(0, 1, 0, 0), pad_edge=False)
    for name in section.table.columns:
        # Headings are wrapped so that columns are no wider than their cells; only names are folded.
        rich_table.add_column(
            Text(name if name in section.heads else fill(name, _width(section, name) - 2, break_long_words=False)),
            justify="left" if name in section.left else "right",
            vertical="top",
            overflow="fold",
            no_wrap=name not in section.heads,
        )
    for place, row in section.table.to_dict("index").items():
        places = [(place, name) for name in row]
        styles = ["bold" if at in section.best else "dim" if at in section.at_floor else "" for at in places]
        rich_table.add_row(*map(Text, row.values(), styles))
    console.print(Text(section.title, style="bold"), rich_table, sep="\n")


def _print_list(console: Console, section: Section) -> None:
    name_column = next(name for name in section.heads if name in section.table)
    console.print(Text(section.title))
    for row in section.table.to_dict("records"):
        cells = [f"  {name}: {cell}" for name, cell in row.items() if cell and name != name_column]
        console.print(Text("\n".join([f"- {row[name_column]}", *cells])))
