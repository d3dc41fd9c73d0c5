"""Score of models of adaptive depth over what they compute: layers, FLOPs and time, at several budgets.

There are three panels per task and variant, with one line per kind of budget. FLOPs and time are those of the same
batches at all budgets. The dashed line is the strongest floor.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

from lra_bench.records.schema import Record
from lra_bench.tables.seeds import over_seeds

from .curves import Curves, limits
from .legend import draw_floor
from .style import SMALL
from .variants import IDENTITY, PANEL, SHEET, extent, floor_of, panel_title, placed, units

if TYPE_CHECKING:
    import pandas as pd
    from matplotlib.axes import Axes

RUN = "run lra-bench bench with a model of adaptive depth, such as model=universal or model=calm"
COSTS: Mapping[str, tuple[str, str, float]] = {
    "layers": ("mean_depth", "mean number of layers", 1.0),
    "FLOPs": ("flops_per_token", "MFLOPs per token, forward pass", 1e-6),
    "time": ("seconds_per_token", "µs per token, forward pass", 1e6),
}
"""Costs by name: field of a point, label of the axis, and factor of its unit."""
RULES = {
    "layers": "exit at one layer",
    "steps": "at most so many steps",
    "trained": "rule of the training",
    "threshold": "exit at a confidence",
    "calibrated": "exit at a calibrated confidence",
}
"""Names of the kinds of budgets in legends."""


def exclusions(records: Sequence[Record]) -> list[str]:
    """Return for each record the reason why it is not drawn, empty if it is drawn."""
    known = (record.status == "ok" and record.adaptive_depth is not None for record in records)
    return ["" if found else "without budgets of depth" for found in known]


def table(records: Sequence[Record]) -> pd.DataFrame:
    """Return one row per variant, budget and cost, averaged over seeds; ``x`` is the cost in the unit of its axis."""
    import pandas as pd

    rows = [
        [
            {"metric": record.metric, "rule": RULES[point["kind"]], **floor_of(record), **point}
            for point in (record.adaptive_depth or {"points": []})["points"]
        ]
        for record in records
    ]
    points = placed(records, rows).astype({"floor": float})
    by = [*SHEET, *PANEL, *IDENTITY, "cost", "kind", "rule", "value"]
    parts = [
        points.assign(cost=name, x=factor * pd.to_numeric(points[column]))
        for name, (column, _, factor) in COSTS.items()
    ]
    data = over_seeds(pd.concat(parts, ignore_index=True).dropna(subset=["x"]), by)
    order = pd.CategoricalDtype(list(COSTS), ordered=True)
    return data.astype({"cost": order}).sort_values([*by[:-1], "x"]).reset_index(drop=True)


def _title(rows: pd.DataFrame, sheet: pd.DataFrame) -> str:
    first = rows.iloc[0]
    machine = f" · {first['hardware']}" if first["cost"] == "time" else ""
    return f"{panel_title(rows, sheet)} · {first['label']}{machine}"


def _decorate(ax: Axes, rows: pd.DataFrame) -> None:
    factor, name = units(rows["metric"].iloc[0])
    draw_floor(ax, rows, factor)
    limits(ax, *(factor * end for end in extent(rows, "score", "low", "high", "floor")))
    low, high = extent(rows, "x")
    margin = 0.06 * (high - low or high or 1.0)
    ax.set_xlim(low - margin, high + margin)
    ax.locator_params(axis="y", nbins=6, steps=[1, 2, 5, 10])
    ax.set_xlabel(COSTS[str(rows["cost"].iloc[0])][1], fontsize=SMALL)
    ax.set_ylabel(name)


KIND = Curves(
    panel=[*PANEL, "label", "cost"], x="x", y="score", bars=True, title=_title,
    decorate=_decorate, lines=("kind", "rule"),
    linear=True,
)  # fmt: skip
draw = KIND.draw
