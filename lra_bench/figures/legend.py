"""Entries of legends below the panels of a figure, and the floors that they explain."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, NamedTuple

import numpy as np
import pandas as pd
from matplotlib.axes import Axes

from .palette import AT_FLOOR, GREY
from .variants import at_floor, units_of

DOT = "\N{NO-BREAK SPACE}· "
"""Separator of the parts of a label. Because of the no-break space, labels are not wrapped in front of the dot."""

# Looks of lines and of legend entries, as keyword arguments of matplotlib.
SEED: Mapping[str, Any] = {"marker": ".", "markersize": 3, "markeredgewidth": 0.0, "linestyle": "none"}
BLOCK: Mapping[str, Any] = {"linewidth": 6, "solid_capstyle": "butt"}
FLOOR: Mapping[str, Any] = {"color": GREY, "linestyle": (0, (4, 2)), "linewidth": 1.0}


class Entry(NamedTuple):
    """A label in a legend, and the options (of matplotlib's ``Line2D``) of the line drawn to the left of it."""

    label: str
    options: Mapping[str, Any]


def words(label: str) -> Entry:
    """Return an entry without a line."""
    return Entry(label, {"linestyle": "none"})


def bar(label: str, marker: str = "|") -> Entry:
    """Return the entry of a bar, vertical by default and horizontal if ``marker`` is ``_``."""
    options = {"color": GREY, "marker": marker, "markersize": 7, "markeredgewidth": 0.9, "linestyle": "none"}
    return Entry(label, options)


def ended(status: str) -> str:
    """Return the words for the status of the first failed point of a curve, such as ``out of memory``."""
    return "time limit" if status == "timeout" else status.replace("_", " ")


def score_bars(rows: pd.DataFrame, marker: str = "|") -> list[Entry]:
    """Return the entries of the intervals of ``over_seeds``, of marks of single seeds, and of scores at the floor."""
    known = rows.loc[rows["low"].notna() & rows["high"].notna(), "interval"].unique()
    over = [unit for unit in ("seeds", "examples") if unit in known]
    entries = [bar(f"95 % confidence interval over {' or '.join(over)}", marker)] if over else []
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


def draw_floor(ax: Axes, rows: pd.DataFrame, x: str = "", joined: bool = True) -> None:
    """Draw the mean of the floors of a panel as a horizontal line, or that at each value of a column ``x``.

    Those at several values are ``joined``, or drawn as short lines.
    """
    known = rows.dropna(subset=["floor"])
    if known.empty:
        return
    factor = units_of(known)[0]
    if x and known[x].nunique() > 1:
        at = factor * known.groupby(x)["floor"].mean()
        ends = [(place,) if joined else (place - 0.4, place + 0.4, np.nan) for place in at.index]
        ax.plot(np.ravel(ends), np.repeat(at, len(ends[0])), zorder=1.7, gid="floor", **FLOOR)
    else:
        ax.axhline(factor * known["floor"].mean(), zorder=1.7, gid="floor", **FLOOR)


def floor_entry(rows: pd.DataFrame, where: str = "") -> list[Entry]:
    """Return the legend entry of the floors, with their name if all tasks have the same; empty if none is known.

    ``where`` follows the explanation of floors.
    """
    names = set(rows["floor_name"].dropna())
    if not names:
        return []
    kind = "baseline without a model" + (f", {where}" if where else "")
    name = f": {names.pop().replace('_', ' ')}" if len(names) == 1 else ""
    return [Entry(f"floor ({kind}){name}", FLOOR)]


def floor_notes(rows: pd.DataFrame) -> list[str]:
    """Return a sentence of the caption with the name of the floor of each task, empty if all have the same or none."""
    if "floor_name" not in rows:
        return []
    named = rows.dropna(subset=["floor_name"])[["task", "floor_name"]].drop_duplicates()
    if named["floor_name"].nunique() < 2:
        return []
    tasks = (f"{task} {name}" for task, name in named.itertuples(index=False, name=None))
    return [f"Floors: {', '.join(tasks)}".replace("_", " ")]
