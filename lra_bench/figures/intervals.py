"""Legend entries that explain bars and bands."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from .legend import Entry
from .palette import AT_FLOOR, GREY
from .variants import at_floor

if TYPE_CHECKING:
    import pandas as pd


SEED: Mapping[str, Any] = {"marker": ".", "markersize": 3, "markeredgewidth": 0.0, "linestyle": "none"}
"""Look of the score of a single seed, as keyword arguments of matplotlib."""


BLOCK: Mapping[str, Any] = {"linewidth": 6, "solid_capstyle": "butt"}
"""Look of the legend entry of an area, as keyword arguments of matplotlib."""


def score_bars(rows: pd.DataFrame, marker: str = "|") -> list[Entry]:
    """Return the entries of the intervals of ``over_seeds``, of marks of single seeds, and of scores at the floor."""
    known = rows.loc[rows["low"].notna() & rows["high"].notna(), "interval"].unique()
    units = [unit for unit in ("seeds", "examples") if unit in known]
    entries = [bar(f"95 % confidence interval over {' or '.join(units)}", marker)] if units else []
    if (rows["interval"] == "each").any():
        entries.append(Entry("small marks: each seed; large mark: their mean", {**SEED, "color": GREY}))
    if at_floor(rows).any():
        grey = {"color": AT_FLOOR, "marker": "o", "markersize": 4, "linestyle": "none"}
        entries.append(Entry("grey: no seed exceeds the floor", grey))
    return entries


def seed_band(rows: pd.DataFrame) -> list[Entry]:
    """Return the entry of a band from the smallest to the largest seed, empty if each curve has one seed."""
    if not (rows["low"] < rows["high"]).any():
        return []
    return [Entry("range over seeds (minimum to maximum)", {"color": GREY, "alpha": 0.3, **BLOCK})]


def bar(label: str, marker: str = "|") -> Entry:
    """Return the entry of a bar, vertical by default and horizontal if ``marker`` is ``_``."""
    options = {"color": GREY, "marker": marker, "markersize": 7, "markeredgewidth": 0.9, "linestyle": "none"}
    return Entry(label, options)
