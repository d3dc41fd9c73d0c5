"""Score over length relative to the training length, with the floor of each length."""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Sequence
from typing import TYPE_CHECKING, Any

from lra_bench.leaderboard.runs import lacks, ratio_name
from lra_bench.leaderboard.statistics import t_interval
from lra_bench.records.extrapolation import ExtrapolationPoint
from lra_bench.records.schema import Record

from .style import COLUMN_INCHES, GREY, PAGE_INCHES, Look, legend_below, legend_inches, looks, new_figure, panel, style
from .variants import IDENTITY, identity, labels

if TYPE_CHECKING:
    import pandas as pd
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

PANEL = ["task", "version", "protocol", "data_lacks", "train_length", "length_variant"]
POINT = [*PANEL, *IDENTITY, "ratio", "length"]
COLUMNS = [*POINT, "seeds", "score", "low", "high", "interval", "floor", "floor_name", "metric", "label"]
CELL_INCHES, LEFT_INCHES, BOTTOM_INCHES, TOP_INCHES = 2.3, 0.5, 0.45, 0.25


def draw(records: Iterable[Record]) -> tuple[Figure, pd.DataFrame]:
    """A panel per task, protocol and way to make other lengths, a line per variant, and the numbers drawn.

    Bars are 95 % intervals: of the mean over seeds where there are two or more, else over examples. The dashed line is
    the floor at each length, the vertical one the training length. Lengths that could not be measured are missing.
    """
    data = _curves(_points(records))
    panels = list(data.groupby(PANEL, dropna=False))
    columns = min(max(len(panels), 1), 3)
    rows = math.ceil(max(len(panels), 1) / columns)
    width = COLUMN_INCHES if columns == 1 else PAGE_INCHES
    legend_columns = 1 if columns == 1 else 3
    entries = data["label"].nunique() + data["floor_name"].nunique()
    legend = legend_inches(math.ceil(entries / legend_columns))
    look_of = looks(zip(data["model"], data["label"], strict=True))
    with style():
        figure = new_figure(width, rows * CELL_INCHES + legend)
        axes = []
        for number, (key, points) in enumerate(panels):
            row, column = divmod(number, columns)
            left, bottom = column * width / columns, legend + (rows - 1 - row) * CELL_INCHES
            size = (width / columns - LEFT_INCHES - 0.1, CELL_INCHES - BOTTOM_INCHES - TOP_INCHES)
            axes.append(panel(figure, left + LEFT_INCHES, bottom + BOTTOM_INCHES, *size))
            _draw_panel(axes[-1], key, points, look_of)
        legend_below(figure, axes, 0.04, legend_columns)
    return figure, data


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
            }
            for record in records
            if record.status == "ok" and record.extrapolation
            for variant, point in _in_every_variant(record.extrapolation["points"])
            if point["status"] == "ok" and point["score"] is not None
        ]
    )


def _in_every_variant(points: Sequence[ExtrapolationPoint]) -> Iterator[tuple[str, ExtrapolationPoint]]:
    """Points with the way their length was made; the training length belongs to each, unless it was made in each."""
    apart = len({point["variant"] for point in points if point["ratio"] == 1}) > 1
    for variant in dict.fromkeys(point["variant"] for point in points):
        for point in points:
            if variant == point["variant"] or (point["ratio"] == 1 and not apart):
                yield variant, point


def _curves(points: pd.DataFrame) -> pd.DataFrame:
    """Seeds averaged: one row per variant and length."""
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


def _draw_panel(ax: Axes, key: Any, points: pd.DataFrame, look_of: dict[tuple[str, str], Look]) -> None:
    task, _, protocol, lacking, train_length, variant = key
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
    curves = list(points.groupby(["model", "label"], sort=False))
    for number, ((model, label), curve) in enumerate(curves):
        # Moved aside by a hair each, so that bars of curves that meet stay readable.
        aside = 2 ** (0.05 * (number - (len(curves) - 1) / 2))
        bars = scale * abs(curve[["low", "high"]].sub(curve["score"], axis=0).to_numpy().T)
        look = look_of[str(model), str(label)]
        ax.errorbar(
            curve["ratio"] * aside, scale * curve["score"], yerr=bars, label=label, elinewidth=0.8, capsize=1.5,
            capthick=0.8, zorder=3, **look.options(),
        )  # fmt: skip
    ax.set_xscale("log", base=2)
    ratios = sorted(points["ratio"].unique())
    ax.set_xticks(ratios, [ratio_name(ratio).replace("x", "×") for ratio in ratios])
    ax.minorticks_off()
    ax.set_xlim(min(ratios) / 1.25, max(ratios) * 1.25)
    ax.set_title(f"{task} · {protocol}{' · ' + variant if variant != 'redrawn' else ''}{' *' if lacking else ''}")
    ax.set_xlabel(f"relative length (1× = {train_length:,} tokens)")
    ax.set_ylabel("accuracy (%)" if metric == "accuracy" else "bits per character")
