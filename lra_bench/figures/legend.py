"""Legends below the panels of a figure, whose height is computed before the figure is laid out."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from .style import SMALL, line_inches, text_inches, wrapped

if TYPE_CHECKING:
    from matplotlib.figure import Figure

HANDLE_INCHES = 0.3  # length of the line to the left of a label
GAP_INCHES = 0.06  # between the line and its label
BETWEEN_INCHES = 0.16  # between two columns
ROW_GAP_INCHES = 0.02  # between two entries of a column
MARGIN_INCHES = 0.04  # above the first row
LINE_CENTRE = 0.49  # from the top of a line of text to the line that is drawn to the left of it, in line heights
BASELINE = 0.75  # from the top of a line of text to its baseline, in line heights
NARROWEST_INCHES = 0.95  # minimum width of wrapped names, except in a single column
MOST_COLUMNS = 6
DOT = "\N{NO-BREAK SPACE}· "
"""Separator of the parts of a label. Because of the no-break space, labels are not wrapped in front of the dot."""


@dataclass(frozen=True)
class Entry:
    """A label in a legend, and the options (of matplotlib's ``Line2D``) of the line drawn to the left of it."""

    label: str
    options: dict[str, Any] = field(hash=False)


@dataclass(frozen=True)
class Legend:
    """Entries laid out in columns, filled from top to bottom.

    Attributes:
        columns: The entries of each column; long labels are already wrapped into several lines.
        widths: Width of each column in inches, including the lines to the left of the labels.
        points: Font size of the labels in points.
    """

    columns: list[list[Entry]]
    widths: list[float]
    points: float

    @property
    def inches(self) -> float:
        """Height in inches including the margin above the first row, 0 if there are no entries."""
        heights = [sum(self._height(entry) for entry in column) for column in self.columns]
        return max(heights) + MARGIN_INCHES if heights else 0.0

    def _height(self, entry: Entry) -> float:
        """Return the height of an entry in inches, including the gap below it."""
        return line_inches(self.points) * (entry.label.count("\n") + 1) + ROW_GAP_INCHES

    def draw(self, figure: Figure, left: float, top: float) -> None:
        """Draw the legend with its upper left corner ``left`` and ``top`` inches from the lower left of the figure."""
        from matplotlib.lines import Line2D

        across, up = figure.get_size_inches()
        for column, width in zip(self.columns, self.widths, strict=True):
            line_top = top - MARGIN_INCHES
            for entry in column:
                # In fractions of the figure. The marker is drawn at the middle one of the three points.
                middle = (line_top - line_inches(self.points) * LINE_CENTRE) / up
                ends = [left / across, (left + HANDLE_INCHES / 2) / across, (left + HANDLE_INCHES) / across]
                line = Line2D(ends, [middle] * 3, markevery=[1], transform=figure.transFigure, **_short(entry.options))
                figure.add_artist(line)
                for number, text in enumerate(entry.label.split("\n")):
                    baseline = line_top - line_inches(self.points) * (number + BASELINE)
                    figure.text(
                        (left + HANDLE_INCHES + GAP_INCHES) / across, baseline / up, text, fontsize=self.points,
                        va="baseline", ha="left", gid="legend",
                    )  # fmt: skip
                line_top -= self._height(entry)
            left += width + BETWEEN_INCHES


def _short(options: dict[str, Any]) -> dict[str, Any]:
    """Return options of a line with dashes of half the length, which are visible in the short lines of a legend."""
    line = options.get("linestyle")
    return {**options, "linestyle": (0, tuple(each / 2 for each in line[1]))} if isinstance(line, tuple) else options


def lay_out(entries: Sequence[Entry], inches: float, points: float = SMALL) -> Legend:
    """Return the legend of least height among those with 1 to ``MOST_COLUMNS`` columns that fit a width.

    Of equal heights, the one with the fewest columns is returned. Labels are wrapped if the columns are too narrow.

    Args:
        entries: The entries, in the order of the legend. Without entries the legend is empty.
        inches: Available width in inches.
        points: Font size in points.
    """
    found = [_in_columns(entries, count, inches, points) for count in range(1, min(len(entries), MOST_COLUMNS) + 1)]
    fitting = [legend for legend in found if legend is not None]
    return min(fitting, key=lambda legend: legend.inches, default=Legend([], [], points))


def _in_columns(entries: Sequence[Entry], count: int, inches: float, points: float) -> Legend | None:
    """Return the legend with at most ``count`` columns in a width of ``inches``.

    If the labels do not fit, they are wrapped to the width of ``count`` equal columns. Returns None if labels would
    then be narrower than ``NARROWEST_INCHES``, except in a single column.
    """
    handle = HANDLE_INCHES + GAP_INCHES
    columns = _fill(entries, count)
    widths = [handle + max(text_inches(entry.label, points) for entry in column) for column in columns]
    between = BETWEEN_INCHES * (len(columns) - 1)
    if sum(widths) + between > inches:
        room = (inches - between) / count - handle
        if count > 1 and room < NARROWEST_INCHES:
            return None
        columns = _fill([Entry(wrapped(entry.label, room, points), entry.options) for entry in entries], count)
        widths = [handle + max(text_inches(entry.label, points) for entry in column) for column in columns]
    return Legend(columns, widths, points)


def _fill(entries: Sequence[Entry], count: int) -> list[list[Entry]]:
    """Distribute the entries over at most ``count`` columns of equal length; only the last one may be shorter."""
    rows = -(-len(entries) // count)
    return [list(entries[start : start + rows]) for start in range(0, len(entries), rows)]


def ended(status: str) -> str:
    """Return the words for the status of the first failed point of a curve, such as ``out of memory``."""
    return "time limit" if status == "timeout" else status.replace("_", " ")
