"""A language model's loss over how much of its context it has read, at the training length and beyond."""

from __future__ import annotations

import math
from collections.abc import Iterable
from typing import TYPE_CHECKING

from lra_bench.leaderboard.runs import lacks, ratio_name
from lra_bench.records.schema import Record

from .style import COLOURS, GREY, LINES, MARKERS, PAGE_INCHES, legend_below, legend_inches, new_figure, panel, style
from .variants import IDENTITY, identity, labels

if TYPE_CHECKING:
    import pandas as pd
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

PANEL = ["task", "protocol", "data_lacks", "train_length"]
BIN = [*PANEL, *IDENTITY, "knob", "ratio", "length", "first", "last"]
COLUMNS = [*BIN, "seeds", "n", "bits_per_character", "label"]
CELL_INCHES, LEFT_INCHES, BOTTOM_INCHES, TOP_INCHES = 2.4, 0.55, 0.45, 0.42


def draw(records: Iterable[Record]) -> tuple[Figure, pd.DataFrame]:
    """A panel per variant and knob, a line per length of context, seeds averaged; and the numbers drawn.

    A mark stands at the last token of its bin. The vertical line is the training length: a line that rises behind it
    belongs to a model that longer contexts mislead.
    """
    data = _averaged(records)
    panels = [points for _, points in data.groupby([*PANEL, *IDENTITY, "knob"], dropna=False)]
    columns = 2
    rows = math.ceil(max(len(panels), 1) / columns)
    legend = legend_inches(math.ceil(data["ratio"].nunique() / 3))
    ratios = [float(ratio) for ratio in sorted(data["ratio"].unique())]
    with style():
        figure = new_figure(PAGE_INCHES, rows * CELL_INCHES + legend)
        axes = []
        for number, points in enumerate(panels):
            row, column = divmod(number, columns)
            left, bottom = column * PAGE_INCHES / columns, legend + (rows - 1 - row) * CELL_INCHES
            size = (PAGE_INCHES / columns - LEFT_INCHES - 0.1, CELL_INCHES - BOTTOM_INCHES - TOP_INCHES)
            axes.append(panel(figure, left + LEFT_INCHES, bottom + BOTTOM_INCHES, *size))
            _draw_panel(axes[-1], points, ratios)
        legend_below(figure, axes, 0.04, 3)
    return figure, data


def _averaged(records: Iterable[Record]) -> pd.DataFrame:
    import pandas as pd

    rows = pd.DataFrame(
        [
            {
                "task": record.key.task,
                "protocol": record.key.protocol,
                "data_lacks": lacks(record),
                "train_length": record.extrapolation["train_length"],
                **identity(record),
                "seed": record.key.seed,
                **each,
            }
            for record in records
            if record.status == "ok" and record.extrapolation
            for each in record.extrapolation["by_position"]
        ]
    )
    if rows.empty:
        return pd.DataFrame(columns=COLUMNS)
    groups = rows.sort_values([*BIN, "seed"]).groupby(BIN, dropna=False)
    data = groups.agg(seeds=("seed", "nunique"), n=("n", "sum"), bits_per_character=("bits_per_character", "mean"))
    data = data.reset_index()
    return data.assign(label=labels(data, PANEL))[COLUMNS]


def _draw_panel(ax: Axes, points: pd.DataFrame, ratios: list[float]) -> None:
    first = points.iloc[0]
    ax.axvline(first["train_length"], color=GREY, linewidth=0.8, zorder=1)
    for number, ratio in enumerate(ratios):
        line = points[points["ratio"] == ratio]
        if line.empty:
            continue
        ax.plot(
            line["last"], line["bits_per_character"], label=f"context {ratio_name(ratio).replace('x', '×')}",
            color=COLOURS[number % len(COLOURS)], marker=MARKERS[number % len(MARKERS)],
            linestyle=LINES[number % len(LINES)], zorder=3,
        )  # fmt: skip
    ax.set_xscale("log", base=2)
    knob = f" · {first['knob']}" if first["knob"] else ""
    lacking = " *" if first["data_lacks"] else ""
    ax.set_title(f"{first['task']} · {first['protocol']}{lacking}{knob}\n{first['label']}")
    ax.set_xlabel("tokens read in the window")
    ax.set_ylabel("bits per character")
