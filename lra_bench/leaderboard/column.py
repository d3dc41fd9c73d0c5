"""The ``Column`` dataclass: source, meaning and format of one column of a table."""

from __future__ import annotations

import itertools
import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any, Literal

from .cell import Cell
from .formatting import at_length, readable
from .runs import Run, length_points

Row = Mapping[str, Any]
Direction = Literal["ascending", "descending"]

REPEATS: Mapping[str, Callable[[Run], Mapping[str, Any]]] = {
    "<floor>": lambda run: run.record.floors,
    "<ratio>": lambda run: length_points(run.record),
    "<curve>": lambda run: run.curves(),
}
"""Placeholders in column names. Each maps a run to the names it is replaced with, and to the objects passed to
``Column.run``. ``<task>`` is replaced with the tasks of a table of all tasks.
"""

PATTERNS = {"<floor>": r"(?!name$|[\d.]+x(_|$)).+", "<ratio>": r"[\d.]+x(_.+)?", "<curve>": "(_.+)?", "<task>": ".+"}
"""Regular expressions for the names that may replace a placeholder."""

UNIT = re.compile(r"(?<=\d) (%|points|bits)(?!\w)")


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
        return {None: "the unit of the metric", "bits_per_character": "bits per character"}.get(self.metric, "%")

    def length(self, row: Row) -> str:
        """Return the timed length of a row, empty if the heading of its column states it."""
        return "" if self.at else at_length(row["speed_length"])


@dataclass(frozen=True, kw_only=True)
class Column:
    """One column of the data, of tables for readers, or of both.

    Attributes:
        name: The name in the data. A placeholder such as ``<ratio>`` repeats the column (see ``REPEATS``).
        help: The description, one sentence without a capital letter and a full stop. Like headings, it may contain
            ``{at}``, ``{floor}``, ``{unit}``, ``{part}``, ``{against}``, ``{remark}`` and ``{times}`` (a ratio with
            ``×``), which are replaced with values of the table's ``Context``.
        run: A function that returns the value of one run. A repeated column receives the repeated object as second
            argument. A column with neither ``run`` nor ``tasks`` is computed from all rows of a table.
        tasks: A function that returns the value of one variant from its values by task in the column ``of``, such as
            ``mean``.
        of: The repeated column whose values ``tasks`` receives, by default the one named ``<name>_<task>``.
        of_accuracies: Whether ``tasks`` receives only values of tasks that are scored by accuracy.
        seeds: How the values of the seeds of a variant are combined: the first known value, the mean or the largest of
            the known values; or, only if the value of every seed is known, their median or sum. None if the column is
            not computed from runs.
        dtype: The type in data frames, by default the one inferred by pandas.
        heading: The heading in tables for readers. Columns without a heading are in the data only.
        page_heading: The heading on the page, by default ``heading``.
        left: Whether the column is left-aligned in tables of text.
        cell: A function that returns the cell of a row, by default the value as text.
        text: A function that returns the cell as text and replaces ``cell`` in tables of text.
        key: The name in links to the page, by default the name in the data.
        kind: How cells are sorted.
        first: The direction of the first sort; ``best`` sorts the best score first.
        machine: Whether values are sorted within the same hardware only.
        scale: Whether cells are in the unit of the metric (see ``Context.units``).
    """

    name: str
    help: str
    run: Callable[..., Any] | None = None
    tasks: Callable[[Mapping[str, Any]], Any] | None = None
    of: str = ""
    of_accuracies: bool = False
    seeds: Literal["first", "mean", "largest", "median of all", "sum of all"] | None = None
    dtype: Literal["Int64", "float64"] | None = None
    heading: str = ""
    page_heading: str = ""
    left: bool = False
    cell: Callable[[Row, Context], Cell] | None = None
    text: Callable[[Row, Context], str] | None = None
    key: str = ""
    kind: Literal["number", "text"] = "number"
    first: Direction | Literal["best"] = "descending"
    machine: bool = False
    scale: bool = False

    @cached_property
    def repeats(self) -> str:
        """The placeholder in the name, empty if the column is not repeated."""
        start = self.name.find("<")
        return self.name[start : self.name.index(">") + 1] if start >= 0 else ""

    def named(self, part: str) -> str:
        """Return the name of the column in the data, with ``part`` in place of the placeholder."""
        return self.name.replace(self.repeats, part) if self.repeats else self.name

    def over_tasks(self, row: Row, labels: Iterable[str]) -> Any:
        """Return the value of one variant over the tasks ``labels``, for a column with ``tasks``."""
        assert self.tasks is not None
        name = self.of or f"{self.name}_<task>"
        return self.tasks({label: row[name.replace("<task>", label)] for label in labels})

    def part_of(self, name: str) -> str | None:
        """Return the part of ``name`` in place of the placeholder, empty if the column is not repeated.

        The result is None if ``name`` is the name of another column.
        """
        if not self.repeats:
            return "" if name == self.name else None
        found = self._pattern.fullmatch(name)
        return found[1] if found else None

    @cached_property
    def _pattern(self) -> re.Pattern[str]:
        before, after = map(re.escape, self.name.split(self.repeats))
        return re.compile(f"{before}({PATTERNS[self.repeats]}){after}")


@dataclass(frozen=True)
class Shown:
    """A column as shown in one table for readers."""

    column: Column
    context: Context

    @property
    def key(self) -> str:
        """The name in links."""
        return self._filled(self.column.key) or self.column.named(self.context.part)

    @property
    def heading(self) -> str:
        """The heading, without the spaces around empty placeholders."""
        return self._filled(self.column.heading).strip()

    @property
    def page_heading(self) -> str:
        """The heading on the page."""
        return self._filled(self.column.page_heading).strip() or self.heading

    @property
    def help(self) -> str:
        """The description of the column, one sentence."""
        return self._filled(self.column.help)

    @property
    def kind(self) -> str:
        """How cells are sorted: ``number`` or ``text``."""
        return self.column.kind

    @property
    def first(self) -> Direction:
        """The direction of the first sort."""
        if self.column.first == "best":
            return "ascending" if self.context.metric == "bits_per_character" else "descending"
        return self.column.first

    @property
    def machine(self) -> bool:
        """Whether rows are sorted within the same hardware only."""
        return self.column.machine

    def cell(self, row: Row) -> Cell:
        """Return the cell of ``row``."""
        if self.column.cell is not None:
            return self.column.cell(row, self.context)
        value = row[self.column.named(self.context.part)]
        return Cell(value, value) if value else Cell()

    def text(self, row: Row) -> str:
        """Return the cell of ``row`` in a table of text."""
        text = self.column.text(row, self.context) if self.column.text else self.cell(row).plain()
        return UNIT.sub("", text) if self.column.scale and not self.context.units else text

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
    """Return the values of one run by column name, without columns that have no ``run``."""
    row: dict[str, Any] = {}
    for repeats, group in itertools.groupby(columns, key=lambda column: column.repeats):
        reading = [(column, column.run) for column in group if column.run is not None]
        if not repeats:
            row |= {column.name: read(run) for column, read in reading}
            continue
        for part, each in REPEATS[repeats](run).items():
            found = {column.named(part): read(run, each) for column, read in reading}
            row |= {name: value for name, value in found.items() if name not in row}
    return row


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
