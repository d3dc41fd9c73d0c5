"""Panels on pages: measured, placed in inches, none too high for a sheet of paper."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING

from .legend import Entry, Legend, lay_out
from .style import PAGE_HEIGHT_INCHES, line_inches, new_figure, panel, style, wrapped

if TYPE_CHECKING:
    import pandas as pd
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

TITLE_POINTS = 8.0
RIGHT_INCHES = 0.1
EDGE_INCHES = 0.05
ROW_GAP_INCHES = 0.1


@dataclass
class Sheet:
    """One figure: what it belongs to (``quick``, ``cpu-epyc-2t``), its pages, drawn when taken, and its numbers."""

    parts: tuple[str, ...]
    pages: Iterable[Figure]
    data: pd.DataFrame

    @property
    def name(self) -> str:
        """Its parts as the end of a file's name."""
        return "-".join(part for part in self.parts if part)


@dataclass(frozen=True)
class Cell:
    """A panel: its title, what draws into its axes, its height in inches, and a legend of its own beneath."""

    title: str
    draw: Callable[[Axes], None]
    height: float = 1.75
    legend: Sequence[Entry] = field(default=())


@dataclass(frozen=True)
class Frame:
    """Inches left and below each panel for what stands beside its axes, and panels to a row."""

    columns: int
    left: float = 0.52
    bottom: float = 0.4


@dataclass(frozen=True)
class _Row:
    cells: list[Cell]
    titles: list[str]
    legends: list[Legend]
    above: float
    height: float
    below: float

    @property
    def inches(self) -> float:
        return self.above + self.height + self.below + ROW_GAP_INCHES


def pages(
    cells: Sequence[Cell], width: float, frame: Frame, legend: Sequence[Entry] = (), heading: str = ""
) -> Iterator[Figure]:
    """Figures of a width in inches with all ``cells``, row by row; heading and legend stand on every page."""
    frame = replace(frame, columns=min(frame.columns, len(cells)))
    across = width / frame.columns
    rows = [_row(cells[start : start + frame.columns], across, frame) for start in range(0, len(cells), frame.columns)]
    heading = wrapped(heading, width - 2 * EDGE_INCHES, TITLE_POINTS)
    shared = lay_out(legend, width - 2 * EDGE_INCHES)
    outside = _text_height(heading) + shared.inches + 2 * EDGE_INCHES
    for group in _fill(rows, outside):
        yield _page(group, width, frame, shared, heading, outside)


def _row(cells: Sequence[Cell], across: float, frame: Frame) -> _Row:
    titles = [wrapped(cell.title, across - frame.left, TITLE_POINTS) for cell in cells]
    legends = [lay_out(cell.legend, across - 2 * EDGE_INCHES) for cell in cells]
    return _Row(
        list(cells),
        titles,
        legends,
        above=max(map(_text_height, titles)) + 0.04,
        height=max(cell.height for cell in cells),
        below=frame.bottom + max(legend.inches for legend in legends),
    )


def _text_height(text: str) -> float:
    return line_inches(TITLE_POINTS) * (text.count("\n") + 1) if text else 0.0


def _fill(rows: Sequence[_Row], outside: float) -> Iterator[list[_Row]]:
    """Rows for each page, at least one."""
    page: list[_Row] = []
    for row in rows:
        if page and outside + sum(other.inches for other in page) + row.inches > PAGE_HEIGHT_INCHES:
            yield page
            page = []
        page.append(row)
    yield page


def _page(rows: list[_Row], width: float, frame: Frame, shared: Legend, heading: str, outside: float) -> Figure:
    height = outside + sum(row.inches for row in rows)
    across = width / frame.columns
    with style():
        figure = new_figure(width, height)
        top = height - EDGE_INCHES
        if heading:
            figure.text(0.5, top / height, heading, ha="center", va="top", fontsize=TITLE_POINTS, gid="heading")
            top -= _text_height(heading)
        for row in rows:
            bottom = top - row.above - row.height
            for column, (cell, title, legend) in enumerate(zip(row.cells, row.titles, row.legends, strict=True)):
                left = column * across + frame.left
                upwards = bottom + row.height - cell.height
                ax = panel(figure, left, upwards, across - frame.left - RIGHT_INCHES, cell.height)
                cell.draw(ax)
                if title:
                    ax.set_title(title, fontsize=TITLE_POINTS, loc="left", linespacing=1.0)
                legend.draw(figure, column * across + EDGE_INCHES, upwards - frame.bottom)
            top -= row.inches
        shared.draw(figure, EDGE_INCHES, top)
    return figure
