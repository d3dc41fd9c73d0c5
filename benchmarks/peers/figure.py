"""The figure: time and peak memory of each pair, ours and the peer's, beside the floor."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pandas as pd

from lra_bench.figures.style import (
    BLACK,
    COLOURS,
    GREY,
    PAGE_INCHES,
    legend_below,
    legend_inches,
    new_figure,
    panel,
    style,
)

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

ROW_INCHES = 0.15
NAME_INCHES = 2.8
MARGIN_INCHES = 0.2
WIDE = 50.0  # scales over this factor are labelled at decades alone
LOOKS: dict[str, tuple[str, dict[str, Any]]] = {
    "floor": ("projections alone", {"marker": "|", "color": GREY}),
    "ours": ("lra-bench", {"marker": "o", "color": BLACK}),
    "theirs": ("peer", {"marker": "s", "color": COLOURS[0]}),
}
AXES = {"ms": "time of a step (ms)", "mib": "peak memory (MiB)"}


def draw(data: pd.DataFrame) -> Figure:
    """For each length a panel of times and one of memory, a line for each pair; a peer that failed has no mark."""
    groups = list(data.groupby("length"))
    heights = [0.65 + ROW_INCHES * len(group) for _, group in groups]
    bottom = legend_inches(1) + 0.1
    with style():
        figure = new_figure(PAGE_INCHES, bottom + sum(heights))
        drawn = []
        for number, (length, group) in enumerate(groups):
            below = bottom + sum(heights[number + 1 :])
            drawn += _draw_length(figure, below, f"{length} tokens", group)
        legend_below(figure, drawn, 0.06, len(LOOKS))
    return figure


def _draw_length(figure: Figure, below: float, title: str, group: pd.DataFrame) -> list[Axes]:
    from matplotlib.ticker import FuncFormatter, LogLocator, NullFormatter

    height, gap = ROW_INCHES * len(group), 0.15
    width = (PAGE_INCHES - NAME_INCHES - gap - MARGIN_INCHES) / 2
    places = range(len(group))
    both = []
    for column, (unit, label) in enumerate(AXES.items()):
        ax = panel(figure, NAME_INCHES + column * (width + gap), below + 0.4, width, height)
        for whose, (name, look) in LOOKS.items():
            ax.plot(group[f"{whose}_{unit}"], places, linestyle="none", label=name, **look)
        ax.set_xscale("log")
        low, high = ax.get_xlim()
        ax.xaxis.set_major_locator(LogLocator(subs=(1, 2, 5) if high / low < WIDE else (1,)))
        ax.xaxis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:g}"))
        ax.xaxis.set_minor_formatter(NullFormatter())
        ax.set_ylim(len(group) - 0.5, -0.5)
        ax.set_yticks(places, group["pair"] if column == 0 else [""] * len(group))
        ax.set_xlabel(label)
        ax.set_title(title)
        both.append(ax)
    return both
