"""Layout of panels on pages with matplotlib's constrained layout; a page is never higher than a sheet of paper."""

from __future__ import annotations

import re
import textwrap
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from io import BytesIO
from pathlib import Path
from typing import Any, NamedTuple

import matplotlib
import numpy as np
import pandas as pd
from matplotlib.axes import Axes
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.backends.backend_pdf import PdfPages
from matplotlib.figure import Figure
from matplotlib.lines import Line2D

from lra_bench.runtime.files import replacing
from lra_bench.runtime.safe_text import without_formulas
from lra_bench.tables.latex import escape

from . import style
from .legend import Entry

HANDLE_EM = 4.2  # width of a column of a legend in addition to its text, in font sizes
MOST_COLUMNS = 6
MOST_LEGEND = 0.2  # fraction of the height of a page that its legend may take
PLANNED_LEGEND = 0.8 * MOST_LEGEND  # the layout can make a page a fifth lower than it is planned
MOST_MISSING = 0.03  # difference of the height of all axes from the requested one that needs no further computation


Legend = tuple[dict[str, Any], float]  # arguments of ``Figure.legend``, and height in inches


@dataclass
class Sheet:
    """One figure: the parts of its name (``quick``, ``cpu-epyc-2t``), its pages, drawn on iteration, and its data.

    ``notes`` are the sentences of its caption, without full stops.
    """

    parts: tuple[str, ...]
    pages: Iterable[Figure]
    data: pd.DataFrame
    notes: Sequence[str] = ()

    @property
    def name(self) -> str:
        """The parts joined with hyphens, used as the suffix of file names; safe for shells and LaTeX."""
        return re.sub(r"[^\w-]+", "-", "-".join(filter(None, self.parts)), flags=re.ASCII)


class Panel(NamedTuple):
    """A panel: its title, the function that draws into its axes, and the height of the axes in inches.

    ``draw`` may return a function that is called when the size of the axes is final, such as to place labels.
    ``below`` is the height of tick labels and axis label. ``curves`` contains the ``short`` labels of the legend
    entries that the panel needs; None means all.
    """

    title: str
    draw: Callable[[Axes], Callable[[], None] | None]
    height: float = 1.75
    below: float = 0.36
    curves: frozenset[str] | None = None


def heading(parts: Sequence[str]) -> str:
    """Return the heading of a page from the parts of its name."""
    protocol, section, *others = parts
    remark = {"": "", "edge": ", searched rate at an end of the grid"}.get(section, f", {section}")
    parts_of_heading = f"protocol {protocol}{remark}", *filter(None, others)
    return " · ".join(re.sub(r"^batch(\d+)$", r"batch \1", part) for part in parts_of_heading)


def pages(
    panels: Sequence[Panel],
    width: float,
    columns: int,
    parts: Sequence[str],
    names: Sequence[Entry],
    marks: Sequence[Entry],
) -> tuple[Iterator[Figure], list[str]]:
    """Return pages with all panels, drawn on iteration, and what the caption must explain instead of the legend.

    Panels are drawn row by row, at most ``columns`` next to each other on pages with a ``width`` in inches, with the
    heading of ``parts``. The legend at the bottom of each page has the blocks ``names`` and ``marks``. If it would take
    more than ``MOST_LEGEND`` of the height of a page, marks are left out, or names are shortened, or both. If that is
    not enough, the panels become higher.
    """
    columns = min(columns, len(panels))
    across = int((width / columns - 0.6) / style.text_inches("x", style.TITLE_POINTS))
    panels = [panel._replace(title=textwrap.fill(panel.title, across)) for panel in panels]
    title = textwrap.fill(heading(parts), int(width / style.text_inches("x", style.TITLE_POINTS)))
    rows = [panels[start : start + columns] for start in range(0, len(panels), columns)]
    short = [entry._replace(label=entry.short or entry.label) for entry in names]
    for blocks in ((names, marks), (names, ()), (short, marks), (short, ())):
        legends = [_in_columns(block, width) for block in blocks if block]
        inches = sum(height for _, height in legends)
        found = list(_divided(rows, style.line_inches(style.TITLE_POINTS) * (title.count("\n") + 1.5) + inches))
        if inches <= PLANNED_LEGEND * min(height for _, height in found):
            break
    for number, (own, height) in enumerate(found):  # pages that are too low for the shortest legend
        if (lacking := inches / PLANNED_LEGEND - height) > 0:
            share = lacking * columns / (len(own) + -len(own) % columns)
            found[number] = [panel._replace(height=panel.height + share) for panel in own], height + lacking
    left_out = [entry.sentence for entry in (*names, *marks) if entry not in (*blocks[0], *blocks[1])]

    def drawn(own: Sequence[Panel], height: float) -> Figure:
        needed = (_needed(blocks[0], own), blocks[1])
        return _page(own, (width, height), columns, [_in_columns(block, width) for block in needed if block], title)

    return (drawn(*page) for page in found), left_out


def _needed(names: Sequence[Entry], panels: Sequence[Panel]) -> Sequence[Entry]:
    """Return the legend entries for the curves in ``panels`` and all entries that are not curves."""
    curves = [panel.curves for panel in panels if panel.curves is not None]
    if len(curves) < len(panels):
        return names
    return [entry for entry in names if not entry.short or entry.short in frozenset().union(*curves)]


def _divided(rows: Sequence[Sequence[Panel]], outside: float) -> Iterator[tuple[list[Panel], float]]:
    """Yield the panels of each page and its height, with ``outside`` inches for heading and legend."""
    page: list[Panel] = []
    height = outside
    for row in rows:
        lines = max(panel.title.count("\n") + 1.5 for panel in row)
        own = max(panel.height + panel.below for panel in row) + style.line_inches(style.TITLE_POINTS) * lines
        if page and height + own > style.PAGE_HEIGHT_INCHES:
            yield page, height
            page, height = [], outside
        page = [*page, *row]
        height += own
    yield page, height


def _in_columns(entries: Sequence[Entry], width: float) -> Legend:
    """Return the arguments of ``Figure.legend`` with as many columns as fit, and the height of the legend in inches.

    If they do not fit two columns of a page, or one of a column, labels are wrapped.
    """
    points, least = (style.SMALL, min(len(entries), 2)) if width > style.COLUMN_INCHES else (style.TINY, 1)
    handle = HANDLE_EM * points / style.POINTS
    labels = [entry.label for entry in entries]
    for columns in range(min(len(entries), MOST_COLUMNS), least - 1, -1):
        parts = np.array_split(labels, columns)  # as matplotlib does: the first columns have one more
        if sum(max(style.text_inches(label, points) for label in part) + handle for part in parts) <= width:
            break
    else:
        room = int((width / least - handle) / style.text_inches("n", points))
        labels = [textwrap.fill(label, room) for label in labels]
        columns, parts = least, np.array_split(labels, least)
    handles = [Line2D([], [], label=label, **entry.options) for label, entry in zip(labels, entries, strict=True)]
    lines = max(sum(label.count("\n") + 1 for label in part) for part in parts)
    return {"handles": handles, "ncols": columns, "fontsize": points}, style.line_inches(points) * (lines + 0.8)


def _page(
    panels: Sequence[Panel], size: tuple[float, float], columns: int, legends: Sequence[Legend], title: str
) -> Figure:
    with style.style():
        figure = Figure(figsize=size, layout="constrained")
        FigureCanvasAgg(figure)
        heights = [max(panel.height for panel in panels[at : at + columns]) for at in range(0, len(panels), columns)]
        axes = list(figure.subplots(len(heights), columns, squeeze=False, height_ratios=heights).flat)
        for ax in axes[len(panels) :]:
            ax.remove()
        finish = [panel.draw(ax) for panel, ax in zip(panels, axes, strict=False)]
        titles = [
            ax.set_title(panel.title, fontsize=style.TITLE_POINTS, loc="left", linespacing=1.0)
            for panel, ax in zip(panels, axes, strict=False)
        ]
        figure.suptitle(title, fontsize=style.TITLE_POINTS, gid="heading")
        bottom = below = sum(inches for _, inches in legends)
        for options, inches in legends:
            below -= inches
            at = {"bbox_to_anchor": (0.0, below), "bbox_transform": figure.dpi_scale_trans}
            figure.legend(loc="lower left", **at, **options)
        _fix_positions(figure, axes[: len(panels)], [panel.height for panel in panels], sum(heights), bottom)
        for ax, text in zip(axes, titles, strict=False):  # a title that is too long begins above the names of the rows
            left, _, right, _ = ax.get_position().extents * size[0]
            room = (size[0] if columns == 1 else right) - left
            beyond = style.text_inches(text.get_text(), style.TITLE_POINTS) - room
            text.set_x(-max(beyond, 0) / (right - left))
        for call in filter(None, finish):
            call()
    return figure


def _fix_positions(figure: Figure, axes: Sequence[Axes], heights: Sequence[float], total: float, bottom: float) -> None:
    """Compute the layout above ``bottom`` inches, give the axes their heights in inches, and fix the layout.

    Positions are rounded, because the results of matplotlib's solver differ slightly from run to run.
    """
    engine: Any = figure.get_layout_engine()
    for is_last in (False, True):
        share = bottom / figure.get_figheight()
        engine.set(rect=(0, share, 1, 1 - share))
        engine.execute(figure)
        rows = {ax.get_subplotspec().rowspan.start: ax.get_position().height for ax in axes}  # type: ignore[union-attr]
        missing = total - sum(rows.values()) * figure.get_figheight()
        if is_last or abs(missing) <= MOST_MISSING * total:
            break
        figure.set_figheight(min(figure.get_figheight() + missing, style.PAGE_HEIGHT_INCHES))
    boxes = [ax.get_position() for ax in axes]
    figure.set_layout_engine(None)  # with "none" savefig would draw an additional time
    for ax, box, height in zip(axes, boxes, heights, strict=True):
        own = min(height / figure.get_figheight(), box.height)
        left, bottom, width, up = (round(each, 5) for each in (box.x0, box.y1 - own, box.width, own))
        ax.set_position((left, bottom, width, up))


def svg(page: Figure) -> bytes:
    """Return a page as SVG, with text as paths. Equal figures result in equal bytes."""
    written = BytesIO()
    with style.style(), matplotlib.rc_context({"svg.hashsalt": "lra-bench", "svg.fonttype": "path"}):
        page.savefig(written, format="svg", metadata={"Date": None, "Creator": None})
    return written.getvalue()


def save(sheet: Sheet, content: str, folder: Path, name: str, pdf: bool = True) -> list[Path]:
    """Write the pages of a sheet as one PDF and one PNG each, its data as CSV, and its caption as text and LaTeX.

    ``content`` is the first sentence of the caption, ``name`` that of the figure, to which that of the sheet is added.
    Pages are drawn sequentially and not kept. Each file is written atomically. Equal figures result in equal bytes,
    because no date is written. Without ``pdf`` saving takes half as long. Raises ``UserError`` if the folder cannot be
    written.
    """
    name = f"{name}-{sheet.name}"
    caption = " ".join([content, *(f"{note[:1].upper()}{note[1:]}." for note in (heading(sheet.parts), *sheet.notes))])
    texts = {"txt": caption, "tex": f"\\caption{{{escape(caption)}}}\n"}
    images = []
    try:
        # Fonts are written when the document is closed, so it must be closed before the style is reset.
        with style.style(), ExitStack() as written:
            document = None
            if pdf:
                path = written.enter_context(replacing(folder / f"{name}.pdf"))
                document = written.enter_context(PdfPages(path, metadata={"CreationDate": None}))
            for number, page in enumerate(sheet.pages, start=1):
                images.append(folder / f"{name if number == 1 else f'{name}-{number}'}.png")
                with replacing(images[-1]) as temporary:
                    if document is not None:
                        document.savefig(page)
                    # The default compression level takes several times as long.
                    page.savefig(temporary, format="png", pil_kwargs={"compress_level": 1})
        with replacing(folder / f"{name}.csv") as path:
            without_formulas(sheet.data).to_csv(path, index=False)
        for suffix, text in texts.items():
            with replacing(folder / f"{name}.{suffix}") as path:
                path.write_text(text, encoding="utf-8")
    except OSError as error:
        raise style.unwritable(folder, error) from error
    return [*([folder / f"{name}.pdf"] if pdf else []), *images, *(folder / f"{name}.{end}" for end in ("csv", *texts))]
