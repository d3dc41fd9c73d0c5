"""Entries of legends below the panels of a figure."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from .palette import AT_FLOOR, GREY
from .variants import at_floor

if TYPE_CHECKING:
    import pandas as pd
    from matplotlib.axes import Axes

DOT = "\N{NO-BREAK SPACE}· "
"""Separator of the parts of a label. Because of the no-break space, labels are not wrapped in front of the dot."""
SEED: Mapping[str, Any] = {"marker": ".", "markersize": 3, "markeredgewidth": 0.0, "linestyle": "none"}
"""Keyword arguments of matplotlib for the score of a single seed."""
BLOCK: Mapping[str, Any] = {"linewidth": 6, "solid_capstyle": "butt"}
"""Look of the legend entry of an area, as keyword arguments of matplotlib."""


@dataclass(frozen=True)
class Entry:
    """A label in a legend, and the options (of matplotlib's ``Line2D``) of the line drawn to the left of it."""

    label: str
    options: dict[str, Any] = field(hash=False)


def ended(status: str) -> str:
    """Return the words for the status of the first failed point of a curve, such as ``out of memory``."""
    return "time limit" if status == "timeout" else status.replace("_", " ")


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


def words(label: str) -> Entry:
    """Return an entry without a line."""
    return Entry(label, {"linestyle": "none"})


def floor_line() -> dict[str, Any]:
    """Return the line style of floors as matplotlib's keyword arguments."""
    return {"color": GREY, "linestyle": (0, (4, 2)), "linewidth": 1.0}


def draw_floor(ax: Axes, rows: pd.DataFrame, factor: float) -> None:
    """Draw the mean of the floors of a panel as a horizontal line, if there are any; ``factor`` is that of scores."""
    if len(floor := rows["floor"].dropna()):
        ax.axhline(factor * floor.mean(), zorder=1.7, gid="floor", **floor_line())


def floor_entry(rows: pd.DataFrame, where: str = "") -> list[Entry]:
    """Return the legend entry of the floors, with their name if all tasks have the same; empty if none is known.

    ``where`` follows the explanation of floors.
    """
    names = set(rows["floor_name"].dropna())
    if not names:
        return []
    kind = "baseline without a model" + (f", {where}" if where else "")
    name = f": {names.pop().replace('_', ' ')}" if len(names) == 1 else ""
    return [Entry(f"floor ({kind}){name}", floor_line())]


def floor_notes(rows: pd.DataFrame) -> list[str]:
    """Return a sentence of the caption with the name of the floor of each task, empty if all have the same or none."""
    if "floor_name" not in rows:
        return []
    named = rows.dropna(subset=["floor_name"])[["task", "floor_name"]].drop_duplicates()
    if named["floor_name"].nunique() < 2:
        return []
    tasks = (f"{task} {name}" for task, name in named.itertuples(index=False, name=None))
    return [f"Floors: {', '.join(tasks)}".replace("_", " ")]
