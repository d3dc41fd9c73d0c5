"""Legends that are measured before the layout and placed below the panels."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from .style import SMALL, line_inches, text_inches, wrapped

if TYPE_CHECKING:
    from matplotlib.figure import Figure

HANDLE_INCHES = 0.3
GAP_INCHES = 0.06
BETWEEN_INCHES = 0.16
ROW_GAP_INCHES = 0.02
NARROWEST_INCHES = 0.95  # minimum width of wrapped names, except in a single column
MOST_COLUMNS = 6
DOT = "\N{NO-BREAK SPACE}· "  # the no-break space prevents a dot at the beginning of a line


@dataclass(frozen=True)
class Entry:
    """A label in a legend, and the options of the line drawn to the left of it."""

    label: str
    options: dict[str, Any] = field(hash=False)


@dataclass(frozen=True)
class Legend:
    """Entries laid out in columns, filled from top to bottom."""

    columns: list[list[Entry]]
    widths: list[float]
    points: float

    @property
    def inches(self) -> float:
        """Height including a margin above, 0 if there are no entries."""
        heights = [sum(self._height(entry) for entry in column) for column in self.columns]
        return max(heights) + 0.04 if heights else 0.0

    def _height(self, entry: Entry) -> float:
        return line_inches(self.points) * (entry.label.count("\n") + 1) + ROW_GAP_INCHES

    def draw(self, figure: Figure, left: float, top: float) -> None:
        """Draw the legend with its upper left corner ``left`` and ``top`` inches from the lower left of the figure."""
        from matplotlib.lines import Line2D

        across, up = figure.get_size_inches()
        for column, width in zip(self.columns, self.widths, strict=True):
            place = top - 0.04
            for entry in column:
                middle = (place - line_inches(self.points) * 0.49) / up
                ends = [left / across, (left + HANDLE_INCHES / 2) / across, (left + HANDLE_INCHES) / across]
                line = Line2D(ends, [middle] * 3, markevery=[1], transform=figure.transFigure, **entry.options)
                figure.add_artist(line)
                for number, text in enumerate(entry.label.split("\n")):
                    baseline = place - line_inches(self.points) * (number + 0.75)
                    figure.text(
                        (left + HANDLE_INCHES + GAP_INCHES) / across, baseline / up, text, fontsize=self.points,
                        va="baseline", ha="left", gid="legend",
                    )  # fmt: skip
                place -= self._height(entry)
            left += width + BETWEEN_INCHES


def lay_out(entries: Sequence[Entry], inches: float, points: float = SMALL) -> Legend:
    """Return the legend of least height that fits a width in inches.

    Labels are wrapped if a column is too narrow for them.
    """
    found = [_in_columns(entries, count, inches, points) for count in range(1, min(len(entries), MOST_COLUMNS) + 1)]
    fitting = [legend for legend in found if legend is not None]
    return min(fitting, key=lambda legend: legend.inches, default=Legend([], [], points))


def _in_columns(entries: Sequence[Entry], count: int, inches: float, points: float) -> Legend | None:
    """Return the legend with ``count`` columns, None if the columns are too narrow."""
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
    rows = -(-len(entries) // count)
    return [list(entries[start : start + rows]) for start in range(0, len(entries), rows)]


def ended(status: str) -> str:
    """Return the text of a legend for the status at which a curve ends."""
    return "time limit" if status == "timeout" else status.replace("_", " ")
