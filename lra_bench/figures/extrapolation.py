"""Score over length relative to the training length, with the floor (baseline without a model) at each length.

Bars are 95 % confidence intervals: over examples with one seed, of the mean over seeds with five or more; otherwise
small marks are the scores of the seeds. Points at which no seed exceeds the floor are grey. The dashed line is the
floor at each length, the vertical line the training length. The legend states the shortest longer length without a
score, with the reason.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import TYPE_CHECKING, Any

from lra_bench.measurements.length_curves import curves
from lra_bench.measurements.lengths import ratio_name
from lra_bench.measurements.points import ExtrapolationPoint
from lra_bench.records.schema import Record
from lra_bench.tables.runs import Run
from lra_bench.tables.seeds import over_seeds

from .curves import Curves, limits
from .legend import DOT, draw_floor, ended, floor_line
from .palette import GREY
from .variants import IDENTITY, PANEL, SHEET, excluded_unless, panel_title, placed, score_extent, units

if TYPE_CHECKING:
    import pandas as pd
    from matplotlib.axes import Axes

RUN = "run lra-bench bench, which evaluates each model at the lengths of measure.extrapolation_ratios"
LENGTHENED = [*PANEL, "train_length", "length_variant"]
POINT = [*SHEET, *LENGTHENED, *IDENTITY, "knob", "ratio", "length"]
NUMBERS = ("ratio", "length", "score", "low", "high", "floor", "floor_name", "status")
COLUMNS = [
    *POINT, "seeds", "score", "low", "high", "interval", "seed_scores", "learned", "floor", "floor_name", "metric",
    "status",
]  # fmt: skip

exclusions = excluded_unless(
    lambda record: any(not knob for _, knob, _ in scored_points(record)), "without a score at other lengths"
)


def table(records: Sequence[Record]) -> pd.DataFrame:
    """Return one row per variant and length, averaged over seeds; ``status`` is the reason for a missing score."""
    data = _over_seeds(records)
    return data[data["knob"] == ""].drop(columns="knob")


def averaged(records: Sequence[Record]) -> pd.DataFrame:
    """Return one row per variant, knob and length with a score, averaged over seeds."""
    data = _over_seeds(records)
    return data[data["status"] == "ok"].drop(columns="status")


def _over_seeds(records: Sequence[Record]) -> pd.DataFrame:
    """Return one row per variant, knob and length, averaged over seeds; ``status`` is ok if any seed has a score."""
    import pandas as pd

    points = placed(records, [[*_points(record)] for record in records])
    numbers = ["score", "low", "high", "floor"]
    points[numbers] = points[numbers].apply(pd.to_numeric)
    return over_seeds(points, POINT, {"status": "first"})[COLUMNS]


def _points(record: Record) -> Iterator[dict[str, Any]]:
    metric, train_length = record.metric, record.extrapolation and record.extrapolation["train_length"]
    run = Run(record)
    for variant, knob, point in _all_points(record):
        numbers = {name: point[name] for name in NUMBERS}  # type: ignore[literal-required]
        place = {"train_length": train_length, "metric": metric, "length_variant": variant, "knob": knob}
        yield {**place, **numbers, "clears_floor": run.clears_floor_at(point)}


def scored_points(record: Record) -> Iterator[tuple[str, str, ExtrapolationPoint]]:
    """Return the length variant, the knob and the point of every scored point, once for each curve it belongs to."""
    return (found for found in _all_points(record) if found[2]["score"] is not None)


def _all_points(record: Record) -> Iterator[tuple[str, str, ExtrapolationPoint]]:
    if record.status != "ok" or record.extrapolation is None:
        return
    for (variant, knob), members in curves(record.extrapolation["points"]).items():
        for point in members:
            yield variant, knob, point


def length_title(rows: pd.DataFrame, sheet: pd.DataFrame) -> str:
    """Return the task, and the method of changing the length unless examples are generated for each length."""
    variant = rows["length_variant"].iloc[0]
    return panel_title(rows, sheet) + (f" · {variant.replace('_', ' ')}" if variant != "redrawn" else "")


def decorate_lengths(
    ax: Axes, rows: pd.DataFrame, x: str, label: str, tick: Callable[[float], str] = "{:,}".format
) -> None:
    """Draw the floor of a panel of scores, and set its axes.

    Args:
        ax: The panel.
        rows: Its points.
        x: Column of the lengths, on a logarithmic axis.
        label: Label of that axis.
        tick: Function that returns the label of a length.
    """
    factor, name = units(rows["metric"].iloc[0])
    floor = rows.dropna(subset=["floor"]).groupby(x)["floor"].mean()
    if len(floor) == 1:
        draw_floor(ax, rows, factor)
    else:
        ax.plot(floor.index, factor * floor, zorder=2, gid="floor", **floor_line())
    ax.set_xscale("log", base=2)
    places = sorted(rows[x].unique())
    ax.set_xticks(places, [tick(place) for place in places])
    ax.minorticks_off()
    ax.set_xlim(min(places) / 1.3, max(places) * 1.3)
    ax.locator_params(axis="y", nbins=6, steps=[1, 2, 5, 10])
    limits(ax, *(factor * end for end in score_extent(rows)))
    ax.set_xlabel(label, fontsize=7)
    ax.set_ylabel(name)


def _decorate(ax: Axes, rows: pd.DataFrame) -> None:
    ax.axvline(1.0, color=GREY, linewidth=0.8, zorder=1)
    label = f"relative length (1× = {rows['train_length'].iloc[0]:,} tokens)"
    decorate_lengths(ax, rows, "ratio", label, _times)


def _name(label: str, own: pd.DataFrame) -> str:
    """Return the variant and the length from which it has no score, with the panels unless it is in all of them."""
    ends: dict[str, list[str]] = {}
    panels = list(own.groupby(LENGTHENED, dropna=False))
    for _, rows in panels:
        first = rows[(rows["ratio"] > 1) & (rows["status"] != "ok")].sort_values("ratio").head(1)
        for status, ratio, task in first[["status", "ratio", "task"]].itertuples(index=False, name=None):
            ends.setdefault(f"{ended(status)} at {_times(ratio)}", []).append(task)
    parts = [end if len(tasks) == len(panels) else f"{end} in {', '.join(tasks)}" for end, tasks in ends.items()]
    return DOT.join([label, *parts])


def _times(ratio: float) -> str:
    return ratio_name(ratio).replace("x", "×")


KIND = Curves(
    panel=LENGTHENED, x="ratio", y="score", bars=True, aside=0.06, title=length_title,
    decorate=_decorate,
    name=_name,
)  # fmt: skip
draw = KIND.draw
