"""Columns as shown in one table, and their values."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from lra_bench.contracts.measurement import Column, Direction, Display, number
from lra_bench.measurements.lengths import length_points, plain_curves

from . import formatting
from .cell import Cell, figure, share
from .formatting import BITS, at_length, readable
from .runs import Run

Row = Mapping[str, Any]

REPEATS: Mapping[str, Callable[[Run], Mapping[str, Any]]] = {
    "": lambda run: {"": None},
    "<floor>": lambda run: run.record.floors,
    "<ratio>": lambda run: length_points(run.record.extrapolation),
    "<curve>": lambda run: plain_curves(run.record.extrapolation),
}
"""Placeholders in column names. Each maps a run to the names it is replaced with, and to the objects passed to
``Column.run``. ``<task>`` is replaced with the tasks of a table of all tasks. Other columns are not repeated.
"""


@dataclass(frozen=True)
class Context:
    """Values shared by the rows of one table, used to format its cells.

    Attributes:
        metric: The metric of the scores, None if unknown.
        floor_name: The name of the floor, empty if rows have different floors; cells then name their floor.
        at: The timed length, such as ``@16k``, empty if rows were timed at different lengths; cells then name it.
        axis: The range of the intervals that are drawn.
        part: The ratio or task that a repeated column stands for.
        against: The name of the reference row.
        remark: Text that follows the name of a task in its heading.
        units: Whether cells contain the unit of the metric; otherwise the title of the table states it.
    """

    metric: str | None = None
    floor_name: str = ""
    at: str = ""
    axis: tuple[float, float] = (0.0, 1.0)
    part: str = ""
    against: str = ""
    remark: str = ""
    units: bool = True

    @property
    def unit(self) -> str:
        """The unit in which scores are shown."""
        return {None: "the unit of the metric", BITS: "bits per character"}.get(self.metric, "%")

    def length(self, row: Row) -> str:
        """Return the timed length of a row, empty if the heading of its column states it."""
        return "" if self.at else at_length(row["speed_length"])


@dataclass(frozen=True)
class Shown:
    """A column as shown in one table for readers."""

    column: Column
    context: Context

    @property
    def display(self) -> Display:
        """How the column is shown."""
        return self.column.display

    @property
    def key(self) -> str:
        """The name in links."""
        return self._filled(self.display.key) or self.column.named(self.context.part)

    @property
    def heading(self) -> str:
        """The heading, without the spaces around empty placeholders."""
        return self._filled(self.display.heading).strip()

    @property
    def page_heading(self) -> str:
        """The heading on the page."""
        return self._filled(self.display.page_heading).strip() or self.heading

    @property
    def help(self) -> str:
        """The description of the column, one sentence."""
        return self._filled(self.column.help)

    @property
    def first(self) -> Direction:
        """The direction of the first sort."""
        if self.display.first == "best":
            return "ascending" if self.context.metric == BITS else "descending"
        return self.display.first or ("ascending" if self.display.kind == "text" else "descending")

    def cell(self, row: Row) -> Cell:
        """Return the cell of ``row``."""
        cell: Cell | str | None = self.display.cell(row, self.context) if self.display.cell else None
        if cell is not None:
            return Cell(readable(cell)) if isinstance(cell, str) else cell
        name = self.column.named(self.context.part)
        value = row[name]
        if style := self.display.format:
            tail = self.display.tail(row, self.context) if self.display.tail else ""
            return figure(value, style.format if "{" in style else getattr(formatting, style), tail)
        if self.display.scale:
            clears = row.get(name.replace("score", "clears_floor", 1))
            return replace(share(value, self.context.metric), at_floor=clears is False)
        return Cell() if value in (None, "") else Cell(number(value), value)

    def text(self, row: Row) -> str:
        """Return the cell of ``row`` in a table of text."""
        declared = self.display.text or self.display.cell
        text = declared(row, self.context) if declared else None
        return text if isinstance(text, str) else self.cell(row).plain(self.context.units)

    def _filled(self, text: str) -> str:
        context = self.context
        floor = f"{readable(context.floor_name)} floor" if context.floor_name else "floor"
        times = context.part.replace("x", "×")
        return text.format(
            at=context.at, floor=floor, unit=context.unit, part=context.part, times=times,
            against=context.against or "the reference row", remark=context.remark,
        )  # fmt: skip


def shown(columns: Iterable[Column], context: Context, parts: Mapping[str, Mapping[str, Context]]) -> Iterator[Shown]:
    """Yield the columns of one table; a repeated column is yielded once for each of ``parts``, with its context."""
    for column in columns:
        if column.repeats:
            yield from (Shown(column, replace(each, part=part)) for part, each in parts[column.repeats].items())
        else:
            yield Shown(column, context)


def values(run: Run, columns: Iterable[Column]) -> dict[str, Any]:
    """Return the values of one run by column name, without columns that are computed from all rows of a table."""
    row: dict[str, Any] = {}
    for repeats, group in itertools.groupby(columns, key=lambda column: column.repeats):
        reading = [column for column in group if column.run or column.source]
        for part, each in REPEATS[repeats](run).items():
            for column in reading:
                row.setdefault(column.named(part), _value(run, column, each))
    return row


def _value(run: Run, column: Column, repeated: Any) -> Any:
    """Return the value of a column, of one of the ``repeated`` objects if the column is repeated."""
    if column.run is not None:
        return column.run(run, repeated) if column.repeats else column.run(run)
    return repeated[column.path] if column.repeats else run.find(column.path)


def find_column(columns: Iterable[Column], name: str) -> Column | None:
    """Return the column that ``name`` belongs to, with placeholders replaced, None if there is none."""
    return next((column for column in columns if column.part_of(name) is not None), None)


def in_order(columns: Sequence[Column], names: Iterable[str]) -> list[str]:
    """Sort names in the order of ``columns``.

    Repeated columns keep their order and follow each other at the position of the first repeated column.
    """
    names = list(names)
    single = [column.name for column in columns if not column.repeats]
    first = next((place for place, column in enumerate(columns) if column.repeats), len(columns))
    found = [*single[:first], *(name for name in names if name not in single), *single[first:]]
    return [name for name in found if name in names]
