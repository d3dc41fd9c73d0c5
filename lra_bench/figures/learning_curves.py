"""Validation score over training steps."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING

from lra_bench.records import tables
from lra_bench.records.schema import Record

from .curves import Curves, curve_sheets, floor_entry, floor_line, limits
from .intervals import seed_band
from .layout import Sheet
from .variants import IDENTITY, PANEL, SHEET, extent, panel_title, places, units

if TYPE_CHECKING:
    import pandas as pd
    from matplotlib.axes import Axes

RUN = "run lra-bench bench, which writes learning curves next to each record"
CELL = [*SHEET, *PANEL, *IDENTITY]


def exclusions(records: Sequence[Record]) -> list[str]:
    """Return for each record the reason why it is not drawn, empty if it is drawn."""
    return ["" if "curves" in record.artifacts and record.metric else "without learning curves" for record in records]


def draw(data: pd.DataFrame, width: float) -> Iterator[Sheet]:
    """Draw one panel per task with one line per variant: the mean over seeds, in a band of the range over seeds.

    The dashed line is the strongest floor on the test split; floors on the validation split are not recorded.
    """
    if len(data):
        yield from curve_sheets(data, KIND, width)


def table(records: Sequence[Record]) -> pd.DataFrame:
    """Return one row per variant and validated step."""
    import numpy as np
    import pandas as pd

    curves = [tables.validation_curve(record) for record in records]
    own = [(record, *curve) for record, curve in zip(records, curves, strict=True) if curve is not None]
    if not any(len(steps) for _, steps, _ in own):
        return pd.DataFrame()
    floors = [record.best_floor() or (None, math.nan) for record, _, _ in own]
    cells = places([record for record, _, _ in own]).assign(
        metric=np.array([record.metric for record, _, _ in own], dtype=object),
        floor=np.array([score for _, score in floors], dtype=float),
        floor_name=np.array([name for name, _ in floors], dtype=object),
    )
    # Cells are numbered per record, because grouping all steps by many string columns is slow.
    cells["cell"] = cells.groupby([*CELL, "metric"], dropna=False).ngroup()
    points = pd.DataFrame(
        {
            "cell": np.repeat(cells["cell"], [len(steps) for _, steps, _ in own]),
            "step": np.concatenate([steps for _, steps, _ in own]),
            "validation_score": np.concatenate([scores for _, _, scores in own]),
        }
    )
    groups = points.groupby(["cell", "step"])["validation_score"]
    found = groups.agg(score="mean", low="min", high="max", seeds="count").reset_index()
    of_cells = cells.groupby("cell").agg(floor=("floor", "mean"), floor_name=("floor_name", "first"))
    found = found.join(of_cells, on="cell")
    identities = cells.drop_duplicates("cell").set_index("cell").loc[found.pop("cell")]
    data = pd.concat([identities[CELL].reset_index(drop=True), found], axis=1)
    data.insert(list(data.columns).index("score"), "metric", identities["metric"].to_numpy())
    return data


def _decorate(ax: Axes, rows: pd.DataFrame) -> None:
    factor, name = units(rows["metric"].iloc[0])
    ax.set_xlim(0, 1.03 * rows["step"].max())
    ax.locator_params(axis="y", nbins=6, steps=[1, 2, 5, 10])
    if len(floor := rows["floor"].dropna()):
        ax.axhline(factor * floor.mean(), zorder=2, gid="floor", **floor_line())
    limits(ax, *(factor * end for end in extent(rows, "low", "high", "floor")))
    ax.locator_params(axis="x", nbins=4)
    ax.set_xlabel("training step")
    ax.set_ylabel(f"validation {name}")


KIND = Curves(
    panel=PANEL, x="step", y="score", low="low", high="high", bars=False, title=panel_title, decorate=_decorate,
    scale=lambda rows: units(rows["metric"].iloc[0])[0],
    legend=lambda rows: [*floor_entry(rows, "on the test split"), *seed_band(rows)],
)  # fmt: skip
