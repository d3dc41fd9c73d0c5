"""Tables with a row per variant and a column per task, whose cells are coloured by skill."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Any

from lra_bench.tables.seeds import over_seeds

from . import table_axes
from .layout import Cell, Sheet, pages
from .legend import Entry, words
from .palette import BLACK, WHITE, contrast
from .style import TINY, text_inches
from .variants import IDENTITY, PANEL, SHEET, heading, in_order, looks_of, sheets

if TYPE_CHECKING:
    import pandas as pd
    from matplotlib.axes import Axes

ROWS_PER_PAGE = 60
COLOURS = "cividis"
SHOWN = (0.1, 0.5, 1.0)
"""Skills whose colours the legend shows."""
NARROWEST_INCHES = 0.27
"""Minimum width of a column."""
PALE = "#eeeeee"
MUTED = "#666666"
"""Colour of scores at the floor, with a contrast of more than 4.5 to ``PALE``."""
SHORT = {
    "diverged": "div", "out_of_memory": "mem", "timeout": "time", "incompatible": "–", "failed": "fail",
    "interrupted": "int",
}  # fmt: skip


@dataclass(frozen=True)
class Kind:
    """What the cells of a table contain.

    Attributes:
        text: Returns the text of a cell with a score.
        order: Returns the (model, label) pairs of the rows, the first at the top.
        title: Returns the heading of a column from its rows and those of the sheet, with line breaks.
        legend: Returns the entries of the legend, without that of the statuses.
        column_inches: Maximum width of a column.
        sort_tasks: Whether columns are in alphabetical order, or in that of the rows.
    """

    text: Callable[[Mapping[Any, Any]], str]
    order: Callable[[pd.DataFrame], list[tuple[str, str]]]
    title: Callable[[pd.DataFrame, pd.DataFrame], str]
    legend: Callable[[pd.DataFrame], list[Entry]]
    column_inches: float
    sort_tasks: bool = True

    def draw(self, data: pd.DataFrame, width: float) -> Iterator[Sheet]:
        """Yield one sheet per protocol and section; tasks and rows that do not fit are in further panels."""
        for parts, rows in sheets(data):
            tasks = [group for _, group in rows.groupby(PANEL, dropna=False, sort=self.sort_tasks)]
            keys = in_order(rows) if hasattr(rows["model"], "cat") else self.order(rows)
            room = 0.4 * width
            widest = max(text_inches(table_axes.wrapped(label, room), TINY) for _, label in keys)
            inches = width - widest - table_axes.GLYPH_POINTS / 72 - 0.15
            panels = -(-len(tasks) // int(inches / NARROWEST_INCHES))
            most = -(-len(tasks) // panels)
            across = min(self.column_inches, inches / most)
            lines = [line for group in tasks for line in self.title(group, rows).split("\n")]
            longest = max(text_inches(line, TINY) for line in lines)
            rotated = longest > across - 0.04
            options: dict[str, Any] = {
                "kind": self,
                "rows": rows,
                "room": room,
                "columns": inches / across,
                "rotated": rotated,
            }
            cells = [
                Cell(
                    "",
                    partial(_draw, tasks=tasks[start : start + most], keys=chunk, **options),
                    height=table_axes.edges([label for _, label in chunk], room)[-1],
                    below=longest + 0.1 if rotated else 0.36,
                )
                for start in range(0, len(tasks), most)
                for chunk in table_axes.chunks(_own(keys, tasks[start : start + most]), ROWS_PER_PAGE)
            ]
            legend = [*self.legend(rows), *_statuses(rows)]
            yield Sheet(parts, pages(cells, width, 1, legend, heading(parts)), rows)


def averaged(frame: pd.DataFrame) -> pd.DataFrame:
    """Return one row per variant and task with its seeds combined; without a score, with the status of the first."""
    return over_seeds(frame, [*SHEET, *PANEL, *IDENTITY], {"status": "first"})


def _draw(
    ax: Axes,
    kind: Kind,
    rows: pd.DataFrame,
    tasks: Sequence[pd.DataFrame],
    keys: Sequence[tuple[str, str]],
    room: float,
    columns: float,
    rotated: bool,
) -> None:
    import matplotlib
    import numpy as np

    middles = table_axes.draw(ax, room, keys, looks_of(rows))
    colours = np.ones((len(keys), len(tasks), 4))
    map_of = matplotlib.colormaps[COLOURS]
    place = {key: number for number, key in enumerate(keys)}
    for column, group in enumerate(tasks):
        for entry in group.to_dict("records"):
            row = place.get((entry["model"], entry["label"]))
            if row is None:
                continue
            background = _colour(entry, map_of)
            colours[row, column] = matplotlib.colors.to_rgba(background)
            hexed = matplotlib.colors.to_hex(background)
            readable = max((WHITE, BLACK), key=partial(contrast, hexed))
            ax.text(
                column, middles[entry["label"]], _text(entry, kind.text), fontsize=TINY, ha="center",
                va="center_baseline", weight="bold" if entry.get("best") is True else "normal", gid="tag",
                color=MUTED if entry["learned"] == 0 else readable,
            )  # fmt: skip
    ends = table_axes.edges([label for _, label in keys], room)
    ax.pcolormesh(np.arange(len(tasks) + 1) - 0.5, ends, colours, edgecolors="white", linewidth=0.8)
    ax.set_xlim(-0.5, columns - 0.5)
    ax.grid(visible=False)
    ax.spines[:].set_visible(False)
    names = [kind.title(group, rows) for group in tasks]
    ax.set_xticks(range(len(tasks)), names, fontsize=TINY, rotation=90 if rotated else 0)
    ax.tick_params(axis="x", length=0)


def _own(keys: Sequence[tuple[str, str]], tasks: Sequence[pd.DataFrame]) -> list[tuple[str, str]]:
    """Return the rows with a run of any of the tasks."""
    own = {key for group in tasks for key in zip(group["model"], group["label"], strict=True)}
    return [key for key in keys if key in own]


def _colour(entry: Mapping[Any, Any], map_of: Any) -> Any:
    skill = entry["skill"]
    if skill is None or skill != skill:
        return "white"
    return PALE if skill <= 0 or entry["learned"] == 0 else map_of(min(skill, 1.0))


def _text(entry: Mapping[Any, Any], text: Callable[[Mapping[Any, Any]], str]) -> str:
    """Return the status of a cell without a score, the number of seeds on the upper of two levels, or ``text``."""
    score = entry["score"]
    if score is None or score != score:
        return SHORT.get(entry["status"], entry["status"])
    learned, seeds = entry["learned"], entry["seeds"]
    if entry["two_levels"] is True and learned and learned < seeds:
        return f"{int(learned)}/{int(seeds)}"
    return text(entry)


def floor_text(rows: pd.DataFrame) -> str:
    """Return the floor of a task as a line of the heading of its column, empty if it is unknown."""
    floor = rows["floor"].dropna()
    if not len(floor):
        return ""
    metric = next(iter(rows["metric"].dropna()), None)  # None if no run has a score
    return f"\nfloor {floor.mean():.2f}" if metric == "bits_per_character" else f"\nfloor {100 * floor.mean():.1f}"


def colour_entries(rows: pd.DataFrame) -> list[Entry]:
    """Return the entries that explain the colours of cells."""
    import matplotlib

    at_floor = ((rows["skill"] <= 0) | (rows["learned"] == 0)).any()
    entries = [square(PALE, "at or below the floor (baseline without a model)")] if at_floor else []
    if rows["skill"].notna().any():
        map_of = matplotlib.colormaps[COLOURS]
        entries += [square(matplotlib.colors.to_hex(map_of(share)), f"skill {100 * share:g} %") for share in SHOWN]
    return entries


def levels_entries(rows: pd.DataFrame) -> list[Entry]:
    """Return the entry that explains cells with numbers of seeds, none if there is no such cell."""
    if not ((rows["two_levels"] == True) & (rows["learned"] > 0)).any():  # noqa: E712
        return []
    return [words("2/3: seeds that exceed the floor, if the seeds lie on two levels")]


def _statuses(rows: pd.DataFrame) -> list[Entry]:
    found = rows.loc[rows["score"].isna(), "status"].unique()
    abbreviations = ", ".join(f"{SHORT.get(status, status)}: {status.replace('_', ' ')}" for status in sorted(found))
    return [words(abbreviations)] if abbreviations else []


def square(colour: str, label: str) -> Entry:
    """Return the entry of a colour."""
    edge = {"markeredgecolor": "#bbbbbb", "markeredgewidth": 0.5, "markersize": 6}
    return Entry(label, {"linestyle": "none", "marker": "s", "color": colour, **edge})
