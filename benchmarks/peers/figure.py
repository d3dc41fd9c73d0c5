"""The figure: time and peak memory of each pair and of the floor (projections only)."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pandas as pd

from lra_bench.figures.palette import BLACK, COLOURS, GREY
from lra_bench.figures.style import PAGE_INCHES, style

if TYPE_CHECKING:
    from pathlib import Path

    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

ROW_INCHES = 0.15
WIDE = 50.0  # axes that span more than this factor have labels only at powers of ten
LOOKS: dict[str, tuple[str, dict[str, Any]]] = {
    "floor": ("projections only", {"marker": "|", "color": GREY}),
    "ours": ("lra-bench", {"marker": "o", "color": BLACK}),
    "theirs": ("peer", {"marker": "s", "color": COLOURS[0]}),
}
AXES = {"ms": "time of a step (ms)", "mib": "peak memory (MiB)"}


def draw(data: pd.DataFrame) -> Figure:
    """Draw one panel of times and one of memory per length, with a line per pair; a failed peer has no marker."""
    from matplotlib.figure import Figure

    groups = list(data.groupby("length"))
    rows = [len(group) for _, group in groups]
    with style():
        figure = Figure((PAGE_INCHES, 0.4 + sum(0.65 + ROW_INCHES * number for number in rows)), layout="constrained")
        axes = figure.subplots(len(groups), 2, squeeze=False, sharey="row", height_ratios=rows)
        for (length, group), pair in zip(groups, axes, strict=True):
            for (unit, label), ax in zip(AXES.items(), pair, strict=True):
                _draw_panel(ax, group, unit)
                ax.set_xlabel(label)
                ax.set_title(f"{length} tokens")
        figure.legend(*axes[0][0].get_legend_handles_labels(), loc="outside lower left", ncols=len(LOOKS))
    return figure


def _draw_panel(ax: Axes, group: pd.DataFrame, unit: str) -> None:
    """Draw one number of all pairs of one length."""
    from matplotlib.ticker import FuncFormatter, LogLocator, NullFormatter

    for contender, (name, look) in LOOKS.items():
        ax.plot(group[f"{contender}_{unit}"], range(len(group)), linestyle="none", label=name, **look)
    ax.set_xscale("log")
    low, high = ax.get_xlim()
    ax.xaxis.set_major_locator(LogLocator(subs=(1, 2, 5) if high / low < WIDE else (1,)))
    ax.xaxis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:g}"))
    ax.xaxis.set_minor_formatter(NullFormatter())
    ax.set_ylim(len(group) - 0.5, -0.5)
    ax.set_yticks(range(len(group)), list(group["pair"]))


def save(data: pd.DataFrame, folder: Path) -> list[Path]:
    """Write the figure as PDF and PNG and its data as CSV; return their paths."""
    folder.mkdir(parents=True, exist_ok=True)
    paths = [folder / f"peers.{suffix}" for suffix in ("pdf", "png", "csv")]
    figure = draw(data)
    with style():
        for path in paths[:2]:
            figure.savefig(path)
    data.to_csv(paths[2], index=False)
    return paths
