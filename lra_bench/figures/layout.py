"""Layout of panels on pages, in inches; a page is never higher than a sheet of paper."""

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
    """One figure: the parts of its name (``quick``, ``cpu-epyc-2t``), its pages, drawn on iteration, and its data."""

    parts: tuple[str, ...]
    pages: Iterable[Figure]
    data: pd.DataFrame

    @property
    def name(self) -> str:
        """The parts joined with hyphens, used as the suffix of file names."""
        return "-".join(part for part in self.parts if part)


@dataclass(frozen=True)
class Cell:
    """A panel: its title, the function that draws into its axes, its height in inches, and its legend below."""

    title: str
    draw: Callable[[Axes], None]
    height: float = 1.75
    legend: Sequence[Entry] = field(default=())


@dataclass(frozen=True)
class Frame:
    """The number of panels per row, and the space in inches for labels to the left of and below the axes."""

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
    """Yield the pages with all panels, row by row.

    Args:
        cells: The panels.
        width: The width of a page in inches.
        frame: The number of panels per row and the space around their axes.
        legend: The entries of the legend at the bottom of every page.
        heading: The title at the top of every page.

    Yields:
        One figure per page.
    """
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
    """Yield the rows of each page, at least one per page."""
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
