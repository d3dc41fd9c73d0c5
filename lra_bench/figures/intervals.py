"""Legend entries that explain bars and bands."""

from __future__ import annotations

from typing import TYPE_CHECKING

from .legend import Entry
from .palette import GREY

if TYPE_CHECKING:
    import pandas as pd


def score_bars(rows: pd.DataFrame, marker: str = "|", further: str = "") -> list[Entry]:
    """Return the entry of the intervals of ``over_seeds``, over seeds, examples or both, empty if none is known."""
    known = rows.loc[rows["low"].notna() & rows["high"].notna(), "interval"].unique()
    units = [unit for unit in ("seeds", "examples") if unit in known]
    return [bar(f"95 % confidence interval over {' or '.join(units)}{further}", marker)] if units else []


def seed_band(rows: pd.DataFrame) -> list[Entry]:
    """Return the entry of a band from the smallest to the largest seed, empty if each curve has one seed."""
    if not (rows["low"] < rows["high"]).any():
        return []
    return [Entry("range over seeds (minimum to maximum)", {"color": GREY, "linewidth": 6, "alpha": 0.3})]


def bar(label: str, marker: str = "|") -> Entry:
    """Return the entry of a bar, vertical by default and horizontal if ``marker`` is ``_``."""
    options = {"color": GREY, "marker": marker, "markersize": 7, "markeredgewidth": 0.9, "linestyle": "none"}
    return Entry(label, options)
