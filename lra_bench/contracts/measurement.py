"""The contract of measurements: what each one declares, so that a cell, its record, tables and figures can use it."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import KW_ONLY, dataclass, field, fields
from functools import cached_property
from typing import Any, ClassVar, Literal, NamedTuple

Direction = Literal["ascending", "descending"]

Rule = Literal[
    "first", "shared", "mean", "geometric mean", "largest", "median of all", "sum of all", "all true"
]  # fmt: skip
"""How values are combined to one: the first known value, the value that all known ones equal, their mean, geometric
mean or largest; only if every value is known, their median or sum; or whether all are true, False if any is false.
"""

PATTERNS = {"<floor>": r"(?!name$|[\d.]+x(_|$)).+", "<ratio>": r"[\d.]+x(_.+)?", "<curve>": "(_.+)?", "<task>": ".+"}
"""Regular expressions for the names that may replace a placeholder."""


class Limit(NamedTuple):
    """The shortest length in tokens at which a measurement failed, and its status."""

    status: str
    length: int

    def __str__(self) -> str:
        """Return text such as ``out_of_memory at 8192``."""
        return f"{self.status} at {self.length}"


@dataclass(frozen=True)
class Display:
    """How tables for readers show a column.

    Attributes:
        heading: The heading in tables for readers.
        format: How cells show a number: a function of ``tables.formatting`` such as ``percent``, or a format such as
            ``{:.3f}``.
        page_heading: The heading on the page, by default ``heading``.
        left: Whether the column is left-aligned in tables of text.
        tail: A function that returns what follows the number in a cell.
        cell: A function that returns the cell of a row, or its text; None for the value.
        text: A function that returns the cell as text and replaces ``cell`` in tables of text.
        key: The name in links to the page, by default the name in the data.
        kind: How cells are sorted.
        first: The direction of the first sort, by default ``descending``, of texts ``ascending``; ``best`` sorts the
            best score first.
        machine: Whether values are sorted within the same hardware only.
        scale: Whether cells are in the unit of the metric (see ``Context.units``). By default they show a score, which
            is marked if the column ``clears_floor…`` instead of ``score…`` is false.
    """

    heading: str = ""
    format: str = ""
    page_heading: str = ""
    left: bool = False
    tail: Callable[..., str] | None = None
    cell: Callable[..., Any] | None = None
    text: Callable[..., str] | None = None
    key: str = ""
    kind: Literal["number", "text"] = "number"
    first: Direction | Literal["best", ""] = ""
    machine: bool = False
    scale: bool = False


@dataclass(frozen=True)
class Column:
    """One column of the data, of tables for readers, or of both.

    Attributes:
        name: The name in the data. A placeholder such as ``<ratio>`` repeats the column (see ``tables.column``).
        help: The description, one sentence without a capital letter and a full stop. Like headings, it may contain
            ``{at}``, ``{floor}``, ``{unit}``, ``{part}``, ``{against}``, ``{remark}`` and ``{times}`` (a ratio with
            ``×``), which are replaced with values of the table's ``Context``.
        source: The path of the value in the record, such as ``state.train_length``, or in ``tables.runs.Run``; of a
            repeated column, its key in the repeated object. A path that ends with a dot is followed by the name. By
            default, of a measurement, ``SECTION.NAME``.
        run: A function that returns the value of one run, if a path does not suffice. A repeated column receives the
            repeated object as second argument. A column with neither ``source``, ``run`` nor ``tasks`` is computed from
            all rows of a table.
        after: Of a measurement, names of columns of which the first that the data contains precedes this one; by
            default the column before it in ``columns`` does, and the last of the table precedes the first. With None
            ``load_records`` does not contain the column.
        shown_after: The same in tables for readers that do not name the column.
        seeds: How the values of the seeds of a variant are combined (``Rule``).
        tasks: How the value of a variant is combined from those of its tasks in the column ``of``.
        of: The repeated column whose values ``tasks`` combines, by default the one named ``<name>_<task>``.
        of_accuracies: Whether only values of tasks that are scored by accuracy are combined.
        dtype: The type in data frames, by default the one inferred by pandas.
        display: How tables for readers show the column; without a heading it is in the data only.
    """

    name: str
    help: str
    source: str = ""
    _: KW_ONLY
    run: Callable[..., Any] | None = None
    after: Sequence[str] | None = ()
    shown_after: Sequence[str] = ()
    seeds: Rule = "first"
    tasks: Rule | None = None
    of: str = ""
    of_accuracies: bool = False
    dtype: Literal["Int64", "float64"] | None = None
    display: Display = Display()

    @property
    def path(self) -> str:
        """``source``, followed by the name if it ends with a dot."""
        return self.source + (self.name if self.source.endswith(".") else "")

    @cached_property
    def repeats(self) -> str:
        """The placeholder in the name, empty if the column is not repeated."""
        start = self.name.find("<")
        return self.name[start : self.name.index(">") + 1] if start >= 0 else ""

    def named(self, part: str) -> str:
        """Return the name of the column in the data, with ``part`` in place of the placeholder."""
        return self.name.replace(self.repeats, part) if self.repeats else self.name

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


def columns(helps: Mapping[str, str], source: str = "", **same: Any) -> tuple[Column, ...]:
    """Return columns with the names and descriptions ``helps`` that have all other attributes in common."""
    return tuple(Column(name, help, source, **same) for name, help in helps.items())


@dataclass(frozen=True, kw_only=True)
class ScoreOver:
    """A figure of the score over a measured number, with one panel per task.

    Attributes:
        name: Name of the figure.
        help: What it shows, one sentence; ``lra-bench list figures`` prints it.
        values: Functions of the section by name of a column of the figure's data: first the number on the x axis, then
            lengths in tokens at which it was measured; rows with other lengths are in other panels.
        label: Label of the x axis; ``{name}`` is replaced with a length of ``values``.
        missing: Why a record is not drawn, such as ``without an inference state``.
        remedy: What to run if no record can be drawn, such as ``run lra-bench bench``.
        less_is_better: Whether a lower number is better.
        logarithmic: Whether the x axis is logarithmic.
    """

    name: str
    help: str
    values: Mapping[str, Callable[[Any], Any]]
    label: str
    missing: str
    remedy: str
    less_is_better: bool = True
    logarithmic: bool = False


@dataclass(frozen=True, kw_only=True)
class Points:
    """A list in a section, which ``load_records`` returns as a table, and trackers as a table, numbers and charts.

    Attributes:
        name: Name of the table of ``load_records``.
        path: Name of the list for trackers, such as ``extrapolation/points``; their table is named by its first part.
        of: A function that returns the list of the section.
        columns: Descriptions of the columns of ``load_records`` by name, ``metric`` and ``length_variant`` included;
            empty if the list is no table.
        curve: A function that returns the names of the curve of an entry.
        at: A function that returns the name of an entry within its curve.
        numbers: Fields of an entry in the summary of a tracker.
        charts: Line charts over ``length`` by name: field and title.
    """

    name: str = ""
    path: str
    of: Callable[[Any], Sequence[Mapping[str, Any]]]
    columns: Mapping[str, str] = field(default_factory=dict)
    curve: Callable[[Any], Sequence[str]] = lambda point: ()
    at: Callable[[Any], str] = lambda point: ""
    numbers: Sequence[str] = ()
    charts: Mapping[str, tuple[str, str]] = field(default_factory=dict)


class Measurement:
    """A measurement of a cell in addition to its test score. Its module must not import torch at module level.

    Attributes:
        name: Name of its section of the record.
        stage: What the progress messages call it; an error of the cell names the stage in which it occurred. Empty if
            ``measure`` is not defined, because an earlier stage, such as the training, fills the section.
        title: Heading of its facts on the page, which does not show them if it is empty.
        sections: Names and types of several sections, if ``measure`` returns them by name; ``name`` is the first.
        needs: Names of the fields of ``measurements.subject.Subject`` that it reads. It is not run without them.
        Options: A dataclass of options with defaults, which are set by ``measure.NAME``.
        Result: The type of the section: a ``TypedDict``, or a list or dict of such types; by default it is not checked.
        columns: Columns of leaderboards and of ``load_records``.
        figures: Figures: a ``ScoreOver``, or module and name of a ``figures.contract.Figure``, as ``module:name``.
        logged: Names of the figures that trackers receive, drawn from one record.
        points: Lists in the section.
        options: The values of ``Options`` in this cell.
    """

    name: ClassVar[str]
    stage: ClassVar[str] = ""
    title: ClassVar[str] = ""
    sections: ClassVar[Mapping[str, Any]] = {}
    needs: ClassVar[Sequence[str]] = ("model",)
    Result: ClassVar[Any] = Any
    columns: ClassVar[Sequence[Column]] = ()
    figures: ClassVar[Sequence[ScoreOver | str]] = ()
    logged: ClassVar[Sequence[str]] = ()
    points: ClassVar[Sequence[Points]] = ()

    @dataclass
    class Options:
        """No options."""

    def __init__(self, measure: Any) -> None:
        """Read the options from the section ``measure`` of a configuration."""
        self.options: Any = self.Options(**{each.name: getattr(measure, each.name) for each in fields(self.Options)})

    def check(self, subject: Any) -> None:
        """Raise ``UserError`` before training if the task or the untrained model does not support the options."""

    def measure(self, subject: Any, context: Any) -> Any:
        """Measure a ``Subject`` in a ``Context`` of ``measurements.subject`` and return the section of the record.

        The result is None if the cell has no such section, or a mapping with each of ``sections``.
        """
        raise NotImplementedError

    @classmethod
    def facts(cls, section: Any) -> Iterator[tuple[str, str]]:
        """Yield names and texts of what ``lra-bench show`` prints about a section, or a mapping of ``sections``."""
        yield from ()

    @classmethod
    def facts_of_seeds(cls, sections: Sequence[Any]) -> Iterable[tuple[str, str]]:
        """Return what the page shows about the seeds of a cell, by default ``facts`` with those that differ joined."""
        return merged([dict(cls.facts(section)) for section in sections])


def number(value: Any) -> str:
    """Format a number with separators, floats with four significant digits; return other values as text."""
    if isinstance(value, float):
        return f"{value:,.4g}" if abs(value) < 1e4 else f"{value:,.0f}"
    if isinstance(value, int) and not isinstance(value, bool):
        return f"{value:,}"
    return str(value)


def spelled(value: Any) -> str:
    """Format a value of a record as text: ``number``, yes or no, or the items of a list or mapping."""
    if isinstance(value, bool):
        return "yes" if value else "no"
    if isinstance(value, Mapping):
        return ", ".join(f"{name} {spelled(each)}" for name, each in value.items())
    if isinstance(value, list | tuple):
        return ", ".join(map(spelled, value))
    return number(value)


def listed(values: Mapping[str, Any]) -> str:
    """Return the known values with their names as one line of text."""
    return ", ".join(f"{name} {number(value)}" for name, value in values.items() if value not in (None, [], ""))


def merged(values: Sequence[Mapping[str, Any]]) -> list[tuple[str, str]]:
    """Combine the facts of several seeds: the common value, the range of numbers, or all values."""
    names = dict.fromkeys(name for each in values for name in each)
    found = ((name.replace("_", " "), _together([each.get(name) for each in values])) for name in names)
    return [(name, text) for name, text in found if text]


def _together(values: Iterable[Any]) -> str:
    known = [value for value in values if value not in (None, "", [], {})]
    texts = list(dict.fromkeys(map(spelled, known)))
    if len(texts) > 1 and all(isinstance(value, int | float) and not isinstance(value, bool) for value in known):
        return f"{spelled(min(known))} to {spelled(max(known))}"
    return " / ".join(texts)
