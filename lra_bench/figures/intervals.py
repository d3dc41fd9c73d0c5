"""What the bars and bands of a figure stand for, as its legend says it."""

from __future__ import annotations

from typing import TYPE_CHECKING

from .legend import Entry
from .palette import GREY

if TYPE_CHECKING:
    import pandas as pd


def score_bars(rows: pd.DataFrame, marker: str = "|", further: str = "") -> list[Entry]:
    """The intervals of ``over_seeds``, over seeds, examples or both; none where none is known."""
    known = rows.loc[rows["low"].notna() & rows["high"].notna(), "interval"].unique()
    units = [unit for unit in ("seeds", "examples") if unit in known]
    return [bar(f"95 % interval over {' or '.join(units)}{further}", marker)] if units else []


def seed_band(rows: pd.DataFrame) -> list[Entry]:
    """A band from the least of the seeds to the greatest; none where each curve has one seed."""
    if not (rows["low"] < rows["high"]).any():
        return []
    return [Entry("from the least seed to the greatest", {"color": GREY, "linewidth": 6, "alpha": 0.3})]


def bar(label: str, marker: str = "|") -> Entry:
    """A bar in a legend, upright or (``_``) lying."""
    options = {"color": GREY, "marker": marker, "markersize": 7, "markeredgewidth": 0.9, "linestyle": "none"}
    return Entry(label, options)
