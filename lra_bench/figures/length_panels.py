"""Panels of score over length relative to the training length, with the floor of each length."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Sequence
from typing import TYPE_CHECKING, Any

from lra_bench.leaderboard.runs import lacks, ratio_name
from lra_bench.leaderboard.statistics import t_interval
from lra_bench.measure.curve import curves
from lra_bench.records.extrapolation import ExtrapolationPoint
from lra_bench.records.schema import Record

from .style import (
    COLUMN_INCHES,
    GREY,
    PAGE_INCHES,
    Look,
    legend_below,
    legend_columns,
    legend_inches,
    new_figure,
    panel,
    style,
)
from .variants import IDENTITY, identity, labels

if TYPE_CHECKING:
    import pandas as pd
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

PANEL = ["task", "version", "protocol", "data_lacks", "train_length", "length_variant"]
POINT = [*PANEL, *IDENTITY, "knob", "ratio", "length"]
COLUMNS = [*POINT, "seeds", "score", "low", "high", "interval", "floor", "floor_name", "metric", "label"]
CELL_INCHES, LEFT_INCHES, BOTTOM_INCHES, TOP_INCHES, TITLE_LINE_INCHES = 2.05, 0.5, 0.45, 0.25, 0.13


def averaged(records: Iterable[Record]) -> pd.DataFrame:
    """One row per variant, knob and length that was scored, seeds averaged; ``label`` names the variant.

    Intervals are of the mean over seeds where there are two or more, else over examples.
    """
    return _averaged(_points(records))


def draw_panels(
    data: pd.DataFrame,
    by: Sequence[str],
    line: str,
    look_of: Callable[[Any], Look],
    title_of: Callable[[Any], str],
    most_columns: int = 3,
) -> Figure:
    """A panel for each value of the columns ``by``, in it a line for each of the column ``line``, a legend below.

    ``look_of`` takes a row of the line, ``title_of`` a row of the panel. The dashed line is the floor at each length,
    the vertical one the training length. Lengths that could not be measured are missing.
    """
    panels = [points for _, points in data.groupby(list(by), dropna=False)]
    titles = [title_of(points.iloc[0]) for points in panels]
    top = TOP_INCHES + TITLE_LINE_INCHES * max((title.count("\n") for title in titles), default=0)
    cell = CELL_INCHES + top
    columns = min(max(len(panels), 1), most_columns)
    rows = math.ceil(max(len(panels), 1) / columns)
    width = COLUMN_INCHES if columns == 1 else PAGE_INCHES
    entries = [*data[line].unique(), *(f"floor: {name}" for name in data["floor_name"].dropna().unique())]
    across = legend_columns(entries, width)
    legend = legend_inches(math.ceil(len(entries) / across))
    with style():
        figure = new_figure(width, rows * cell + legend)
        axes = []
        for number, points in enumerate(panels):
            row, column = divmod(number, columns)
            left, bottom = column * width / columns, legend + (rows - 1 - row) * cell
            size = (width / columns - LEFT_INCHES - 0.1, CELL_INCHES - BOTTOM_INCHES)
            axes.append(panel(figure, left + LEFT_INCHES, bottom + BOTTOM_INCHES, *size))
            _draw_panel(axes[-1], points, line, look_of)
            axes[-1].set_title(titles[number])
        legend_below(figure, axes, 0.04, across)
    return figure


def _points(records: Iterable[Record]) -> pd.DataFrame:
    """One row per record and length that was scored."""
    import pandas as pd

    return pd.DataFrame(
        [
            {
                "task": record.key.task,
                "version": record.data["version"] if record.data else None,
                "protocol": record.key.protocol,
                "data_lacks": lacks(record),
                "train_length": record.extrapolation["train_length"],
                **identity(record),
                "metric": record.metric,
                "seed": record.key.seed,
                **point,
                # The model's own variant has that name in the table.
                "variant": record.variant_name,
                "length_variant": variant,
                "knob": knob,
            }
            for record in records
            if record.status == "ok" and record.extrapolation
            for variant, knob, point in _in_every_curve(record)
            if point["status"] == "ok" and point["score"] is not None
        ]
    )


def _in_every_curve(record: Record) -> Iterable[tuple[str, str, ExtrapolationPoint]]:
    """Variant, knob and point, a point once for each curve that it belongs to."""
    for (variant, knob), members in curves(record.extrapolation["points"] if record.extrapolation else []).items():
        for point in members:
            yield variant, knob, point


def _averaged(points: pd.DataFrame) -> pd.DataFrame:
    import pandas as pd

    if points.empty:
        return pd.DataFrame(columns=COLUMNS)
    points = points.sort_values([*POINT, "seed"])
    rows = []
    for key, group in points.groupby(POINT, dropna=False):
        first = group.iloc[0]
        scores = list(group["score"])
        low, high = t_interval(scores) if len(scores) > 1 else (first["low"], first["high"])
        if first["metric"] == "accuracy":
            low, high = max(low, 0.0), min(high, 1.0)
        rows.append(
            {
                **dict(zip(POINT, key, strict=True)),
                "seeds": len(scores),
                "score": sum(scores) / len(scores),
                "low": low,
                "high": high,
                "interval": "seeds" if len(scores) > 1 else "examples",
                "floor": group["floor"].mean(),
                "floor_name": first["floor_name"],
                "metric": first["metric"],
            }
        )
    data = pd.DataFrame(rows)
    return data.assign(label=labels(data, PANEL))[COLUMNS]


def place_of(row: Any) -> str:
    """Task, protocol and the way to make other lengths, as a title."""
    variant = f" · {row['length_variant']}" if row["length_variant"] != "redrawn" else ""
    return f"{row['task']} · {row['protocol']}{variant}{' *' if row['data_lacks'] else ''}"


def _draw_panel(ax: Axes, points: pd.DataFrame, line: str, look_of: Callable[[Any], Look]) -> None:
    metric = points["metric"].iloc[0]
    scale = 100 if metric == "accuracy" else 1
    ax.axvline(1.0, color=GREY, linewidth=0.8, zorder=1)
    floor = points.dropna(subset=["floor"]).groupby("ratio")["floor"].mean()
    if len(floor):
        named = next(iter(points["floor_name"].dropna()), "floor")
        ax.plot(
            floor.index, scale * floor, color=GREY, linestyle=(0, (4, 2)), linewidth=1.0, zorder=2,
            label=f"floor: {named.replace('_', ' ')}",
        )  # fmt: skip
    lines = list(points.groupby(line, sort=False))
    for number, (label, curve) in enumerate(lines):
        # Moved aside by a hair each, so that bars of curves that meet stay readable.
        aside = 2 ** (0.05 * (number - (len(lines) - 1) / 2))
        bars = scale * abs(curve[["low", "high"]].sub(curve["score"], axis=0).to_numpy().T)
        ax.errorbar(
            curve["ratio"] * aside, scale * curve["score"], yerr=bars, label=label, elinewidth=0.8, capsize=1.5,
            capthick=0.8, zorder=3, **look_of(curve.iloc[0]).options(),
        )  # fmt: skip
    ax.set_xscale("log", base=2)
    ratios = sorted(points["ratio"].unique())
    ax.set_xticks(ratios, [ratio_name(ratio).replace("x", "×") for ratio in ratios])
    ax.minorticks_off()
    ax.set_xlim(min(ratios) / 1.25, max(ratios) * 1.25)
    ax.set_xlabel(f"relative length (1× = {points['train_length'].iloc[0]:,} tokens)")
    ax.set_ylabel("accuracy (%)" if metric == "accuracy" else "bits per character")
