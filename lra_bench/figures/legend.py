"""Entries of legends below the panels of a figure, and the floors, intervals and marks that they explain."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np
import pandas as pd
from matplotlib.axes import Axes

from .palette import AT_FLOOR, GREY, Look
from .variants import at_floor

DOT = "\N{NO-BREAK SPACE}· "
"""Separator of the parts of a label. Because of the no-break space, labels are not wrapped in front of the dot."""

# Looks of lines and of legend entries, as keyword arguments of matplotlib.
SEED: Mapping[str, Any] = {"marker": ".", "markersize": 3, "markeredgewidth": 0.0, "linestyle": "none"}
BLOCK: Mapping[str, Any] = {"linewidth": 6, "solid_capstyle": "butt"}
FLOOR: Mapping[str, Any] = {"color": GREY, "linestyle": (0, (4, 2)), "linewidth": 1.0}


class Entry(NamedTuple):
    """An entry of a legend: a label, and the options (of matplotlib's ``Line2D``) of the line to the left of it.

    If there is no room in the legend, ``short`` replaces the label of a name, and the caption contains the label. It
    begins with ``mark``, the words for the line.
    """

    label: str
    options: Mapping[str, Any]
    mark: str = ""
    short: str = ""

    @property
    def sentence(self) -> str:
        """The sentence of a caption instead of the entry, without a full stop."""
        return f"{self.mark}: {self.label}" if self.mark else self.label


def words(label: str) -> Entry:
    """Return an entry without a line."""
    return Entry(label, {"linestyle": "none"})


def bar(label: str, marker: str = "|") -> Entry:
    """Return the entry of a bar, vertical by default and horizontal if ``marker`` is ``_``."""
    options = {"color": GREY, "marker": marker, "markersize": 7, "markeredgewidth": 0.9, "linestyle": "none"}
    return Entry(label, options, "vertical bars" if marker == "|" else "horizontal bars")


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
        entries.append(Entry("grey: not shown to exceed the floor", grey))
    return entries


def draw_scores(ax: Axes, rows: pd.DataFrame, looks: Sequence[Look], at: Any, across: bool = False) -> None:
    """Draw the score of each row, its interval and the scores of its seeds.

    ``at`` are the positions on the x axis, or on the y axis if ``across``. Scores that are not shown to exceed the
    floor are grey.
    """
    lines = ax.hlines if across else ax.vlines
    lines(at, rows["low"], rows["high"], colors=[look.colour for look in looks], linewidth=0.8, zorder=2)
    for place, look, row in zip(at, looks, rows.to_dict("records"), strict=True):
        point = (look.faint() if row["learned"] == 0 else look).points()
        marks: list[tuple[Any, Any]] = [([row["score"]], {"zorder": 3, "linestyle": "none", **point})]
        if row["interval"] == "each":
            marks.append((row["seed_scores"], {"zorder": 2.5, "color": look.colour, "gid": "seed", **SEED}))
        for scores, options in marks:
            places = [place] * len(scores)
            ax.plot(*((scores, places) if across else (places, scores)), **options)


def seed_band(rows: pd.DataFrame) -> list[Entry]:
    """Return the entry of a band from the smallest to the largest seed, empty if each curve has one seed."""
    if not (rows["low"] < rows["high"]).any():
        return []
    return [Entry("range over seeds (minimum to maximum)", {"color": GREY, "alpha": 0.3, **BLOCK}, "bands")]


def draw_floor(ax: Axes, rows: pd.DataFrame, x: str = "", joined: bool = True) -> None:
    """Draw the mean of the floors of a panel as a horizontal line, or that at each value of a column ``x``.

    Those at several values are ``joined``, or drawn as short lines.
    """
    known = rows.dropna(subset=["floor"])
    if x and known[x].nunique() > 1:
        at = known.groupby(x)["floor"].mean()
        ends = [(place,) if joined else (place - 0.4, place + 0.4, np.nan) for place in at.index]
        ax.plot(np.ravel(ends), np.repeat(at, len(ends[0])), zorder=1.7, gid="floor", **FLOOR)
    elif len(known):
        ax.axhline(known["floor"].mean(), zorder=1.7, gid="floor", **FLOOR)


def floor_entry(rows: pd.DataFrame, where: str = "") -> list[Entry]:
    """Return the legend entry of the floors, with their name if all tasks have the same; empty if none is known.

    ``where`` follows the explanation of floors.
    """
    names = set(rows["floor_name"].dropna())
    if not names:
        return []
    kind = "baseline without a model" + (f", {where}" if where else "")
    name = f": {names.pop().replace('_', ' ')}" if len(names) == 1 else ""
    return [Entry(f"floor ({kind}){name}", FLOOR, "dashed line")]


def floor_notes(rows: pd.DataFrame) -> list[str]:
    """Return a sentence of the caption with the name of the floor of each task, empty if all have the same or none."""
    if "floor_name" not in rows:
        return []
    named = rows.dropna(subset=["floor_name"])[["task", "floor_name"]].drop_duplicates()
    if named["floor_name"].nunique() < 2:
        return []
    tasks = (f"{task} {name}" for task, name in named.itertuples(index=False, name=None))
    return [f"Floors: {', '.join(tasks)}".replace("_", " ")]
