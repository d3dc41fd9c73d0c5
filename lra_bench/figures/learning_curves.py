"""Validation score over training steps."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Any

from lra_bench.records import store
from lra_bench.records.schema import Record

from .curves import Curves, curve_sheets, limits
from .intervals import seed_band
from .layout import Sheet
from .variants import IDENTITY, PANEL, SHEET, extent, panel_title, placed, units

if TYPE_CHECKING:
    import pandas as pd
    from matplotlib.axes import Axes

RUN = "run lra-bench bench, which writes learning curves beside each record"
POINT = [*SHEET, *PANEL, *IDENTITY, "step"]


def lacking(records: Sequence[Record]) -> list[str]:
    """For each record why it is not drawn, empty where it is."""
    return ["" if "curves" in record.artifacts and record.metric else "without learning curves" for record in records]


def draw(data: pd.DataFrame, width: float) -> Iterator[Sheet]:
    """A panel per task, a line per variant: the mean of its seeds, in a band from the least of them to the greatest."""
    if len(data):
        yield from curve_sheets(data, KIND, width)


def table(records: Sequence[Record]) -> pd.DataFrame:
    """One row per variant and validated step."""
    import pandas as pd

    found = []
    for record in records:
        curve = store.curves(record, ["step", "validation_score"])
        found.append([] if curve is None else _validated(curve, record.metric))
    if not any(found):
        return pd.DataFrame()
    groups = placed(records, found).groupby([*POINT, "metric"], dropna=False)["validation_score"]
    return groups.agg(score="mean", low="min", high="max", seeds="count").reset_index()


def _validated(curve: pd.DataFrame, metric: str | None) -> list[dict[str, Any]]:
    known = curve[curve["validation_score"].notna().to_numpy()]
    pairs = zip(known["step"].tolist(), known["validation_score"].tolist(), strict=True)
    return [{"metric": metric, "step": step, "validation_score": score} for step, score in pairs]


def _furnish(ax: Axes, rows: pd.DataFrame) -> None:
    factor, name = units(rows["metric"].iloc[0])
    ax.set_xlim(0, 1.03 * rows["step"].max())
    ax.locator_params(axis="y", nbins=6, steps=[1, 2, 5, 10])
    limits(ax, *(factor * end for end in extent(rows, "low", "high")))
    ax.locator_params(axis="x", nbins=4)
    ax.set_xlabel("training step")
    ax.set_ylabel(f"validation {name}")


KIND = Curves(
    panel=PANEL, x="step", y="score", low="low", high="high", bars=False, title=panel_title, furnish=_furnish,
    scale=lambda rows: units(rows["metric"].iloc[0])[0], legend=seed_band,
)  # fmt: skip
