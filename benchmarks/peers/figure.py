"""The figure: time and peak memory of each pair and of the floor (projections only)."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pandas as pd

from lra_bench.figures.legend import Entry, lay_out
from lra_bench.figures.palette import BLACK, COLOURS, GREY
from lra_bench.figures.style import PAGE_INCHES, new_figure, panel, style

if TYPE_CHECKING:
    from matplotlib.figure import Figure

ROW_INCHES = 0.15
NAME_INCHES = 2.8
MARGIN_INCHES = 0.2
WIDE = 50.0  # axes that span more than this factor have labels only at powers of ten
LOOKS: dict[str, tuple[str, dict[str, Any]]] = {
    "floor": ("projections only", {"marker": "|", "color": GREY}),
    "ours": ("lra-bench", {"marker": "o", "color": BLACK}),
    "theirs": ("peer", {"marker": "s", "color": COLOURS[0]}),
}
AXES = {"ms": "time of a step (ms)", "mib": "peak memory (MiB)"}


def draw(data: pd.DataFrame) -> Figure:
    """Draw one panel of times and one of memory per length, with a line per pair; a failed peer has no marker."""
    groups = list(data.groupby("length"))
    heights = [0.65 + ROW_INCHES * len(group) for _, group in groups]
    entries = [Entry(name, {**look, "linestyle": "none"}) for name, look in LOOKS.values()]
    legend = lay_out(entries, PAGE_INCHES - 2 * MARGIN_INCHES)
    bottom = legend.inches + 0.1
    with style():
        figure = new_figure(PAGE_INCHES, bottom + sum(heights))
        for number, (length, group) in enumerate(groups):
            below = bottom + sum(heights[number + 1 :])
            _draw_length(figure, below, f"{length} tokens", group)
        legend.draw(figure, MARGIN_INCHES, bottom - 0.05)
    return figure


def _draw_length(figure: Figure, below: float, title: str, group: pd.DataFrame) -> None:
    """Draw both panels of one length, at ``below`` inches above the bottom of the figure."""
    from matplotlib.ticker import FuncFormatter, LogLocator, NullFormatter

    height, gap = ROW_INCHES * len(group), 0.15
    width = (PAGE_INCHES - NAME_INCHES - gap - MARGIN_INCHES) / 2
    positions = range(len(group))
    for column, (unit, label) in enumerate(AXES.items()):
        ax = panel(figure, NAME_INCHES + column * (width + gap), below + 0.4, width, height)
        for contender, (_, look) in LOOKS.items():
            ax.plot(group[f"{contender}_{unit}"], positions, linestyle="none", **look)
        ax.set_xscale("log")
        low, high = ax.get_xlim()
        ax.xaxis.set_major_locator(LogLocator(subs=(1, 2, 5) if high / low < WIDE else (1,)))
        ax.xaxis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:g}"))
        ax.xaxis.set_minor_formatter(NullFormatter())
        ax.set_ylim(len(group) - 0.5, -0.5)
        ax.set_yticks(positions, group["pair"] if column == 0 else [""] * len(group))
        ax.set_xlabel(label)
        ax.set_title(title)
