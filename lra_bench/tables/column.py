"""Columns as shown in one table, their values, and the functions that build cells from rows."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from lra_bench.contracts.measurement import Column, Direction, Display
from lra_bench.contracts.measurement import number as separated
from lra_bench.measurements.lengths import length_points, plain_curves
from lra_bench.profiling.comparison.ratios import WIDE_SPREAD

from . import formatting
from .cell import UNRESTRICTED, Badges, Cell, Whisker, badges, figure, scored, share, word
from .formatting import BITS, at_length, difference, number, readable
from .runs import Run

Row = Mapping[str, Any]

MOST_SHOWN = 4
"""Largest number of seeds whose scores are listed."""

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
        return Cell() if value in (None, "") else Cell(separated(value), value)

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
        for part, repeated in REPEATS[repeats](run).items():
            for column in reading:
                if column.run is not None:
                    value = column.run(run, repeated) if repeats else column.run(run)
                else:
                    value = repeated[column.path] if repeats else run.find(column.path)
                row.setdefault(column.named(part), value)
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


def rank(row: Row, context: Context) -> Cell:
    """Return the rank of a row that clears the floor in every seed, otherwise an empty cell."""
    return figure(row["rank"] if row["clears_floor"] else None, str)


def score_of_seeds(row: Row, context: Context, suffix: str = "") -> Cell:
    """Return the score with half of its interval and the number of seeds, or the scores of the seeds.

    The text is ``2/3 learned`` if only some seeds on two levels exceed the floor. Up to ``MOST_SHOWN`` scores are
    listed in the order of the seeds; more are shown as a range. The columns are those whose names end with ``suffix``.
    """
    value, low, high, seeds, learned, best, apart = (
        row[f"{name}{suffix}"] for name in ("score", "low", "high", "seed_scores", "learned", "best", "two_levels")
    )
    if value is None:
        return Cell()
    cell = replace(scored(value, low, high, context.metric), best=bool(best), at_floor=learned == 0)
    if not seeds or len(seeds) == 1 or low is not None:
        return replace(cell, tail=f"({len(seeds)})" if seeds else "")
    some = bool(apart and learned and learned < len(seeds))
    shown, sign = ((min(seeds), max(seeds)), "–") if some or len(seeds) > MOST_SHOWN else (seeds, ", ")
    spread = f"({sign.join(number(seed, context.metric) for seed in shown)})"
    return replace(cell, text=f"{learned}/{len(seeds)} learned" if some else cell.text, spread=spread)


def score_text(row: Row, context: Context) -> str:
    """Return the score with its unit and its interval, or the scores of the seeds, as text."""
    cell, metric = score_of_seeds(row, context), context.metric
    if row["low"] is not None:
        cell = replace(cell, spread=f"[{number(row['low'], metric)}, {number(row['high'], metric)}]")
    unit = " %" if metric != BITS and cell and cell.text == number(row["score"], metric) else ""
    return replace(cell, unit=unit, tail="").plain(context.units)


def task_score(row: Row, context: Context) -> Cell:
    """Return the score of one task in a table of all tasks, or its badges if there is none."""
    task = context.part
    if row[f"score_{task}"] is None:
        return Cell(badges=row[f"status_{task}"] or ())
    return score_of_seeds(row, replace(context, metric=row[f"metric_{task}"]), f"_{task}")


def average(name: str, row: Row, context: Context) -> Cell:
    """Return the cell of an average over tasks with half of its interval."""
    return scored(row[name], row[f"{name}_low"], row[f"{name}_high"], "accuracy")


def average_text(name: str, row: Row, context: Context) -> str:
    """Return an average over tasks as text, with half of its interval and the number of seeds."""
    seeds = row[f"{name}_seeds"]
    return replace(average(name, row, context), tail=f"({seeds})" if row[name] and seeds and seeds > 1 else "").plain()


def relative_speed(row: Row, context: Context) -> Cell:
    """Return the relative speed, with the length unless the heading states it, and ``~`` if it is uncertain."""
    mark = "~" if (row["spread_of_relative_speed"] or 0) > WIDE_SPREAD else ""
    return figure(
        row["relative_speed"], f"{{:.2f}}×{mark}".format, "" if context.at else at_length(row["profile_length"])
    )


def verdict(row: Row, context: Context) -> Cell:
    """Return the verdict of the comparison with the reference row, with the difference if it is a claim."""
    text = row["verdict"]
    claimed = text.startswith(("better", "worse"))
    return word(f"{difference(row['difference'], context.metric, context.units)}, {text}" if claimed else text)


def gain(row: Row, context: Context) -> Cell:
    """Return the difference from the same system without pretraining, with its interval; empty for other rows."""
    if not row["pretraining"] or row["difference"] is None:
        return Cell()
    value, low, high = (difference(row[f"difference{end}"], context.metric, False) for end in ("", "_low", "_high"))
    unit = difference(row["difference"], context.metric).removeprefix(value)
    return Cell(f"{value}{f' [{low}, {high}]' if low else ''}", row["difference"], unit=unit)


def axis(row: Row, context: Context) -> Cell:
    """Return the interval on the axis of the table, within margins of the width of a score's mark."""
    if row["score"] is None:
        return Cell()
    low, high = context.axis

    def place(name: str) -> Any:
        return row[name] if row[name] is None else round(3 + 94 * (row[name] - low) / ((high - low) or 1.0), 2)

    return Cell(value=row["score"], whisker=Whisker(place("score"), place("low"), place("high"), place("floor")))


def floor(row: Row, context: Context) -> Cell:
    """Return the score of the floor, with its name if rows have different floors."""
    return share(row["floor"], context.metric, "" if context.floor_name else readable(row["floor_name"] or ""))


def validation(row: Row, context: Context) -> Cell:
    """Return the score on the validation split, empty if there is a test score."""
    return Cell() if row["score"] is not None else share(row["validation_score"], context.metric)


def status(row: Row, context: Context) -> Cell:
    """Return the badges of one task, or of all tasks, each once."""
    found = (row["status"] or Badges()) if "status" in row else badges(row)
    return Cell(value=len(found) or None, badges=found)


def statuses_text(row: Row, context: Context) -> str:
    """Return the statuses of the seeds unless all are ok, and whether the mechanism restricts nothing."""
    ended = "" if set(row["statuses"]) == {"ok"} else str(row["statuses"])
    unrestricted = f"{UNRESTRICTED} {row['unrestricted_at']}" if row["unrestricted_at"] else ""
    return ", ".join(filter(None, (ended, unrestricted)))


def comparable(row: Row, context: Context) -> Cell:
    """Return whether a row is comparable, empty if unknown."""
    return Cell() if (value := row["comparable"]) is None else Cell("yes" if value else "no", int(value))


def parameters(row: Row, context: Context) -> Cell:
    """Return the number of parameters, on each task in the order of the tasks if they differ."""
    sizes = [value for name, value in row.items() if name.startswith("parameters_") and value is not None]
    own = sizes if len(set(sizes)) > 1 else sizes[:1]
    return figure(row["parameters"], lambda _: " / ".join(f"{size:,.0f}" for size in own))
