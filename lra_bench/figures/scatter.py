"""Scatter plots with a cost on the x axis and the score on the y axis, one panel per task.

Each point is a variant, labelled by its name. A halo, a pale disc around the point, can show a second cost by its area.
"""

from __future__ import annotations

import textwrap
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import PurePosixPath
from typing import TYPE_CHECKING, Any

from lra_bench.measurement import ScoreOver
from lra_bench.records.schema import Record
from lra_bench.tables.seeds import over_seeds

from .layout import Cell, Sheet, pages
from .legend import SEED, Entry, bar, draw_floor, floor_entry, floor_notes, score_bars
from .palette import GREY, REFERENCE, Look
from .place import place
from .style import COLUMN_INCHES, SMALL, length_name, logarithmic
from .variants import (
    IDENTITY,
    PANEL,
    SHEET,
    heading,
    looks_of,
    panel_title,
    scores,
    seed_values,
    sheets,
    units,
)

if TYPE_CHECKING:
    import pandas as pd
    from matplotlib.axes import Axes

HALO_POINTS2 = 400.0
"""Area of the largest halo of a sheet, in square points."""
REFERENCE_HALO_POINTS2 = 60.0
"""Maximum area of the halo in the legend, in square points, so that it fits into a line."""
PACKED = 30
"""Number of variants above which halos are smaller."""
MOST_NAMES = 25
"""Maximum number of names in a panel: those on the front, of the reference and the user's, then the best scores."""
LONGEST_NAME = 40
"""Maximum number of characters of a name."""
FRONT: dict[str, Any] = {"color": GREY, "linewidth": 0.7, "linestyle": (0, (2, 1.5))}
"""Look of the line of the Pareto front, as keyword arguments of matplotlib."""


@dataclass(frozen=True)
class Cost:
    """The cost on the x axis; its columns are columns of the figure's data.

    Attributes:
        column: Name of the column with the cost.
        low: Name of the column with the lower end of its confidence interval; None without an interval.
        high: Name of the column with the upper end; None without an interval.
        less_is_better: Whether a lower value of ``column`` is better.
        panel: Names of the columns whose values the rows of a panel share.
        decorate: Function that sets label and scale of the x axis from the rows of a panel.
        halo: Name of the column with the peak memory in bytes, drawn as the area of halos; None without halos.
        of_machine: Whether the cost depends on the machine, so that each hardware has a sheet.
    """

    column: str
    low: str | None
    high: str | None
    less_is_better: bool
    panel: Sequence[str]
    decorate: Callable[[Axes, pd.DataFrame], None]
    halo: str | None = None
    of_machine: bool = True

    def draw(self, data: pd.DataFrame, width: float) -> Iterator[Sheet]:
        """Yield one sheet per protocol and hardware, with one panel per task and a dashed Pareto front.

        Args:
            data: One row per variant, with the columns of ``over_seeds`` and those of the cost.
            width: Width of the sheet in inches.
        """
        for parts, rows in sheets(data, *(["hardware"] if self.of_machine else [])):
            look_of = looks_of(rows)
            panels = [group for _, group in rows.groupby(list(self.panel), dropna=False)]
            packed = rows["label"].nunique() > PACKED
            columns = 1 if width <= COLUMN_INCHES or len(panels) == 1 else 2
            largest = float(rows[self.halo].max()) if self.halo and rows[self.halo].notna().any() else None
            largest_area = HALO_POINTS2 * (0.4 if packed else 1.0)
            height = (4.2 if packed else 3.0) if columns == 1 and width > COLUMN_INCHES else 2.1
            options: dict[str, Any] = {
                "cost": self,
                "look_of": look_of,
                "largest": largest,
                "largest_area": largest_area,
            }
            cells = [Cell(panel_title(group, rows), partial(_draw, rows=group, **options), height) for group in panels]
            front_entry = Entry("Pareto front of variants that exceed the floor in every seed", FRONT)
            front = [front_entry] if any(len(_front(group, self)) > 1 for group in panels) else []
            fitted = [bar("95 % confidence interval of the fit", "_")] if self.low is not None else []
            legend = [
                *front, *_halo_entry(largest, largest_area), *floor_entry(rows), *score_bars(rows), *fitted,
            ]  # fmt: skip
            few = max(map(len, panels)) > MOST_NAMES
            unnamed = [f"At most {MOST_NAMES} points of a panel are named; all are in the CSV file"] if few else []
            notes = [*unnamed, *floor_notes(rows)]
            yield Sheet(parts, pages(cells, width, columns, legend, heading(parts)), rows, notes)


def exclusions_by_cost(records: Sequence[Record], known: Sequence[bool], otherwise: str) -> list[str]:
    """Return for each record the reason why it is not drawn, empty if it is drawn.

    A cost does not depend on the seed. Therefore a record without a cost is drawn if a record of another seed has one.

    Args:
        records: The records.
        known: Whether each record has a cost.
        otherwise: The reason for records with a score and without a known cost.

    Returns:
        The reasons: ``without a score``, ``otherwise``, or an empty string.
    """
    with_cost = {
        _without_seed(record)
        for record, is_known in zip(records, known, strict=True)
        if is_known and record.score() is not None
    }
    return [
        "without a score" if record.score() is None else "" if _without_seed(record) in with_cost else otherwise
        for record in records
    ]


def _without_seed(record: Record) -> tuple[str, PurePosixPath]:
    """Return the parts of a record's key that all seeds of a cell share: machine and folder."""
    return record.machine, record.key.folder()


def _marker(look: Look, at_floor: bool = False) -> dict[str, Any]:
    """Return the look of a single point, without a line, as keyword arguments of matplotlib; grey ``at_floor``."""
    return {**(look.faint() if at_floor else look).points(), "linestyle": "none"}


def _draw(
    ax: Axes,
    cost: Cost,
    rows: pd.DataFrame,
    look_of: Mapping[tuple[str, str], Look],
    largest: float | None,
    largest_area: float,
) -> Callable[[], None]:
    """Draw one panel, and return the function that places the names of its points.

    ``largest_area`` is the area in square points of the halo of ``largest``, the largest value of the sheet.
    """
    import numpy as np

    factor, name = units(rows["metric"].iloc[0])
    x, y = rows[cost.column].to_numpy(float), factor * rows["score"].to_numpy(float)
    halos: Any = np.zeros(len(rows))
    if largest is not None and cost.halo is not None:
        halos = largest_area * rows[cost.halo].astype(float).fillna(0.0).to_numpy() / largest
    keys = list(zip(rows["model"], rows["label"], strict=True))
    colours = [look_of[key].colour for key in keys]
    ax.vlines(x, factor * rows["low"], factor * rows["high"], colors=colours, linewidth=0.6, alpha=0.7, zorder=2)
    if cost.low is not None and cost.high is not None:
        ax.hlines(y, rows[cost.low], rows[cost.high], colors=colours, linewidth=0.6, alpha=0.7, zorder=2)
    ax.scatter(x, y, s=halos, c=colours, alpha=0.22, linewidths=0, zorder=1.5)
    for key, one_x, one_y, row in zip(keys, x, y, rows.to_dict("records"), strict=True):
        ax.plot([one_x], [one_y], zorder=3, **_marker(look_of[key], row["learned"] == 0))
        if values := seed_values(row):
            ax.plot([one_x] * len(values), [factor * value for value in values], zorder=2.5, gid="seed",
                    color=look_of[key].colour, **SEED)  # fmt: skip
    draw_floor(ax, rows, factor)
    front = _front(rows, cost)
    ax.plot(x[front], y[front], zorder=1.8, gid="front", **FRONT)
    ax.set_ylabel(name + _at_length(rows))
    ax.margins(0.09)
    ax.locator_params(axis="y", nbins=6, steps=[1, 2, 5, 10])
    cost.decorate(ax, rows)
    lines = [np.column_stack([x[front], y[front]])]
    score_ends = factor * rows[["low", "high"]].astype(float).to_numpy()
    lines += [np.column_stack([[one_x] * 2, ends]) for one_x, ends in zip(x, score_ends, strict=True)]
    if cost.low is not None and cost.high is not None:
        cost_ends = rows[[cost.low, cost.high]].astype(float).to_numpy()
        lines += [np.column_stack([ends, [one_y] * 2]) for one_y, ends in zip(y, cost_ends, strict=True)]
    order = np.argsort(-_gain(rows), kind="stable").tolist()
    first = [at for at in order if keys[at][0] == REFERENCE or not rows["reference"].iloc[at]]
    named = sorted(list(dict.fromkeys([*front, *first, *order]))[:MOST_NAMES])
    names = [textwrap.shorten(keys[at][1], LONGEST_NAME, placeholder=" …") for at in named]
    return partial(place, ax, x, y, names, colours, lines if len(rows) <= MOST_NAMES else [], named)


def _at_length(rows: pd.DataFrame) -> str:
    """Return the length of the scored examples for the label of an axis, empty if it is unknown."""
    lengths = sorted(rows["train_length"].dropna().unique())
    if not lengths:
        return ""
    between = f"{length_name(int(lengths[0]))}–" if len(lengths) > 1 else ""
    return f", length {between}{length_name(int(lengths[-1]))}"


def _front(rows: pd.DataFrame, cost: Cost) -> list[int]:
    """Return the positions of the rows on the Pareto front of a panel, from the lowest to the highest cost.

    Only rows that exceed the floor in every seed are considered.
    """
    scores = _gain(rows)
    costs = (1 if cost.less_is_better else -1) * rows[cost.column].to_numpy(float)
    above = [index for index, clears in enumerate(rows["clears_floor"].eq(True)) if clears]
    best, front = float("-inf"), []
    for index in sorted(above, key=lambda each: (costs[each], -scores[each])):
        if scores[index] > best:
            best = scores[index]
            front.append(index)
    return front


def _gain(rows: pd.DataFrame) -> Any:
    """Return the scores (R,) of a panel with the sign with which a larger value is better."""
    return (-1 if rows["metric"].iloc[0] == "bits_per_character" else 1) * rows["score"].to_numpy(float)


def _halo_entry(largest: float | None, largest_area: float) -> list[Entry]:
    """Return the legend entry of the halos, a disc with its peak memory in bytes; empty without halos."""
    if not largest:
        return []
    import math

    # The largest of 1, 2 or 5 times a power of ten whose halo fits into a line of the legend.
    most = largest * REFERENCE_HALO_POINTS2 / largest_area
    power = 10.0 ** math.floor(math.log10(most))
    shown = max(step * power for step in (1, 2, 5) if step * power <= most)
    diameter = math.sqrt(largest_area * shown / largest)  # matplotlib's size is an area in scatter, a length here
    options = {
        "color": GREY, "marker": "o", "markersize": diameter, "markeredgewidth": 0, "alpha": 0.45, "linestyle": "none",
    }  # fmt: skip
    return [Entry(f"area: peak memory (this circle: {shown / 1e6:,.3g} MB)", options)]


class ScoreFigure:
    """The figure ``shown`` of the section ``name`` of records, with the members of a ``FigureModule``."""

    def __init__(self, shown: ScoreOver, name: str) -> None:
        self.__doc__, self.RUN, self._shown, self._name = shown.help, shown.remedy, shown, name
        self._columns = list(shown.values)

    def exclusions(self, records: Sequence[Record]) -> list[str]:
        """Return for each record the reason why it is not drawn, empty if it is drawn."""
        known = [self._values(record)[0] is not None for record in records]
        return exclusions_by_cost(records, known, self._shown.missing)

    def table(self, records: Sequence[Record]) -> pd.DataFrame:
        """Return one row per variant, aggregated over seeds, with the first known values of a seed."""
        import pandas as pd

        measured = pd.DataFrame([self._values(record) for record in records], columns=self._columns, dtype=float)
        frame = pd.concat([scores(records), measured], axis=1)
        return over_seeds(frame, [*SHEET, *PANEL, *IDENTITY], dict.fromkeys(self._columns, "first"))

    def draw(self, data: pd.DataFrame, width: float) -> Iterator[Sheet]:
        """Draw one panel per task."""
        column, *lengths = self._columns
        less = self._shown.less_is_better
        panel = [*PANEL, *lengths]
        cost = Cost(column, None, None, less, panel, self._decorate, of_machine=False)
        yield from cost.draw(data, width)

    def _values(self, record: Record) -> list[float | None]:
        section = record.section(self._name)
        return [None if section is None else value(section) for value in self._shown.values.values()]

    def _decorate(self, ax: Axes, rows: pd.DataFrame) -> None:
        if self._shown.logarithmic:
            logarithmic(ax, "x")
        lengths = {name: length_name(int(rows[name].iloc[0])) for name in self._columns[1:]}
        ax.set_xlabel(self._shown.label.format(**lengths), fontsize=SMALL)
