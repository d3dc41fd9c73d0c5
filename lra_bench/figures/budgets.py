"""Figures of scores over a budget of the evaluation: the length of the memory, the depth."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import pandas as pd
from matplotlib.axes import Axes

from lra_bench.records.schema import Record
from lra_bench.tables.seeds import over_seeds

from .curves import Curves, limits
from .style import log_ticks, logarithmic
from .variants import PANEL, VARIANT, band, extent, floor_of

COSTS: Mapping[str, tuple[str, str, float]] = {
    "layers": ("mean_depth", "mean number of layers", 1.0),
    "FLOPs": ("flops_per_token", "MFLOPs per token, forward pass", 1e-6),
    "time": ("seconds_per_token", "µs per token, forward pass", 1e6),
}
"""Costs of a depth by name: field of a point, label of the axis, and factor of its unit."""
RULES = {
    "layers": "exit at one layer",
    "steps": "at most so many steps",
    "trained": "rule of the training",
    "threshold": "exit at a confidence",
    "calibrated": "exit at a calibrated confidence",
}
"""Names of the kinds of budgets of depth in legends."""


class _ScoreVsMemory(Curves):
    """Bits per character over the memory length of language models with memory, and the state that the memory needs.

    The state is the bytes that the model passes on per document. Lines are means over seeds, bands the range of the
    seeds, and the dashed line is the strongest floor. A length of 0 is drawn at 1.
    """

    remedy = "run lra-bench bench task=enwik8 model=transformer_xl, which tests the lengths of measure.memory_lengths"
    missing = "without scores by memory length"
    panel = (*PANEL, "quantity")
    subtitle = ("quantity",)
    x, y, label = "drawn_length", "value", "memory length in testing (tokens or slots)"
    bars = False

    def rows(self, record: Record) -> list[dict[str, Any]]:
        if record.status != "ok" or (memory := record.memory) is None:
            return []
        constant = {"trained_length": memory["trained_length"], **floor_of(record)}
        return [{**constant, **point} for point in memory["points"]]

    def table(self, records: Sequence[Record]) -> pd.DataFrame:
        """Return one row per variant, memory length and quantity (``bits per character`` or ``state bytes``)."""
        frame = self.points(records)
        by = [*VARIANT, "trained_length", "memory_length"]
        parts = [
            band(frame.assign(value=frame[column]), by, "value", n=("n", "sum")).assign(quantity=quantity)
            for quantity, column in (("bits per character", "score"), ("state bytes", "state_bytes"))
        ]
        data = pd.concat(parts, ignore_index=True)
        floor = data["floor"].where(data["quantity"] == "bits per character")
        return data.assign(drawn_length=data["memory_length"].clip(lower=1), floor=floor)

    def decorate(self, ax: Axes, rows: pd.DataFrame) -> None:
        names = {max(length, 1): f"{length:,}" for length in rows["memory_length"]}
        log_ticks(ax, names, names.__getitem__)
        if rows["quantity"].iloc[0] == "state bytes":
            logarithmic(ax, "y", extent(rows, "low", "high"))
            ax.set_ylabel("bytes")


class _ScoreVsDepth(Curves):
    """Score of models of adaptive depth over what they compute: layers, FLOPs and time, at several budgets.

    There are three panels per task and variant, with one line per kind of budget. FLOPs and time are those of the same
    batches at all budgets. The dashed line is the strongest floor.
    """

    remedy = "run lra-bench bench with a model of adaptive depth, such as model=universal or model=calm"
    missing = "without budgets of depth"
    panel = (*PANEL, "label", "cost")
    subtitle = ("label",)
    x = "x"
    lines = ("kind", "rule")
    linear = True
    columns = 3

    def rows(self, record: Record) -> list[dict[str, Any]]:
        if record.status != "ok" or record.adaptive_depth is None:
            return []
        constant = {"metric": record.metric, **floor_of(record)}
        points = record.adaptive_depth["points"]
        return [{**constant, "rule": RULES[point["kind"]], **point} for point in points]

    def table(self, records: Sequence[Record]) -> pd.DataFrame:
        """Return one row per variant, budget and cost, averaged over seeds; ``x`` is the cost in its unit."""
        points = self.points(records)
        by = [*VARIANT, "cost", "kind", "rule", "value"]
        parts = [
            points.assign(cost=name, x=factor * pd.to_numeric(points[column]))
            for name, (column, _, factor) in COSTS.items()
        ]
        data = over_seeds(pd.concat(parts, ignore_index=True).dropna(subset=["x"]), by)
        order = pd.CategoricalDtype(list(COSTS), ordered=True)
        return data.astype({"cost": order}).sort_values([*by[:-1], "x"]).reset_index(drop=True)

    def title(self, rows: pd.DataFrame, sheet: pd.DataFrame) -> str:
        first = rows.iloc[0]
        return super().title(rows, sheet) + (f" · {first['hardware']}" if first["cost"] == "time" else "")

    def decorate(self, ax: Axes, rows: pd.DataFrame) -> None:
        limits(ax, *extent(rows, "x"), axis="x")
        ax.set_xlabel(COSTS[str(rows["cost"].iloc[0])][1])


score_vs_memory, score_vs_depth = _ScoreVsMemory(), _ScoreVsDepth()
