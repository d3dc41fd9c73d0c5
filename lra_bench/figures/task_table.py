"""Tables with a row per variant and a column per task, whose cells are coloured by skill."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Any

from . import table_axes
from .layout import Cell, Frame, Sheet, pages
from .legend import Entry
from .palette import BLACK, WHITE, Look, contrast
from .style import TINY, line_inches, text_inches
from .variants import PANEL, heading, looks_of, over_seeds

if TYPE_CHECKING:
    import pandas as pd
    from matplotlib.axes import Axes

ROWS_PER_PAGE = 60
COLOURS = "cividis"
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
        top: The skill with the lightest colour, by default the largest one of the sheet.
        sort_tasks: Whether columns are in alphabetical order, or in that of the rows.
    """

    text: Callable[[Mapping[Any, Any]], str]
    order: Callable[[pd.DataFrame], list[tuple[str, str]]]
    title: Callable[[pd.DataFrame, pd.DataFrame], str]
    legend: Callable[[pd.DataFrame, float], list[Entry]]
    column_inches: float
    top: float | None = None
    sort_tasks: bool = True


def averaged(frame: pd.DataFrame, key: list[str]) -> pd.DataFrame:
    """Return one row per group of ``key``, averaged over seeds with a score; without one, a row with the status."""
    import pandas as pd

    scored = over_seeds(frame[frame["score"].notna()], key)
    ended = frame[frame["score"].isna()].sort_values([*key, "seed"]).drop_duplicates(key)
    return pd.concat([scored, ended[~_keys(ended, key).isin(_keys(scored, key))]])


def _keys(frame: pd.DataFrame, key: list[str]) -> pd.Series:
    return frame[key].astype(str).agg("\0".join, axis=1) if len(frame) else frame["model"]


def sheet(parts: tuple[str, ...], rows: pd.DataFrame, width: float, kind: Kind) -> Sheet:
    """Return the figure of the rows of one sheet, which have the column ``label``."""
    tasks = [group for _, group in rows.groupby(PANEL, dropna=False, sort=kind.sort_tasks)]
    names = [kind.title(group, rows) for group in tasks]
    order = kind.order(rows)
    look_of = looks_of(rows)
    room = table_axes.measure([label for _, label in order], 0.42 * width)
    across = min(kind.column_inches, (width - room.left - 0.1) / len(tasks))
    widest = [max(text_inches(line, TINY) for line in name.split("\n")) for name in names]
    rotated = max(widest) > across - 0.04
    below = max(widest) if rotated else line_inches(TINY) * max(name.count("\n") + 1 for name in names)
    top = kind.top or (max(float(rows["skill"].max()), 0.01) if rows["skill"].notna().any() else 1.0)
    cells = [
        Cell(
            "",
            partial(
                _draw, tasks=tasks, names=names, rotated=rotated, keys=chunk, rows=room, look_of=look_of, top=top,
                columns=(width - room.left - 0.1) / across, text=kind.text,
            ),
            height=room.edges(chunk)[-1],
        )
        for chunk in table_axes.chunks(order, ROWS_PER_PAGE)
    ]  # fmt: skip
    frame = Frame(1, left=room.left, bottom=below + 0.08)
    legend = [*kind.legend(rows, top), *_statuses(rows)]
    return Sheet(parts, pages(cells, width, frame, legend, heading(parts)), rows)


def _draw(
    ax: Axes,
    tasks: Sequence[pd.DataFrame],
    names: Sequence[str],
    rotated: bool,
    keys: Sequence[tuple[str, str]],
    rows: table_axes.Rows,
    look_of: Mapping[tuple[str, str], Look],
    top: float,
    columns: float,
    text: Callable[[Mapping[Any, Any]], str],
) -> None:
    import matplotlib
    import numpy as np

    middles = table_axes.draw(ax, rows, keys, look_of)
    colours = np.ones((len(keys), len(tasks), 4))
    map_of = matplotlib.colormaps[COLOURS]
    place = {key: number for number, key in enumerate(keys)}
    for column, group in enumerate(tasks):
        for entry in group.to_dict("records"):
            row = place.get((entry["model"], entry["label"]))
            if row is None:
                continue
            background = _colour(entry, map_of, top)
            colours[row, column] = matplotlib.colors.to_rgba(background)
            weight = "bold" if entry.get("best") is True else "normal"
            hexed = matplotlib.colors.to_hex(background)
            readable = max((WHITE, BLACK), key=partial(contrast, hexed))
            ax.text(
                column, middles[entry["label"]], _text(entry, text), fontsize=TINY, ha="center", va="center_baseline",
                weight=weight, gid="tag",
                color=MUTED if entry["learned"] == 0 else readable,
            )  # fmt: skip
    ax.pcolormesh(np.arange(len(tasks) + 1) - 0.5, rows.edges(keys), colours, edgecolors="white", linewidth=0.8)
    ax.set_xlim(-0.5, columns - 0.5)
    ax.grid(visible=False)
    ax.spines[:].set_visible(False)
    ax.set_xticks(range(len(tasks)), names, fontsize=TINY, rotation=90 if rotated else 0)
    ax.tick_params(axis="x", length=0)


def _colour(entry: Mapping[Any, Any], map_of: Any, top: float) -> Any:
    skill = entry["skill"]
    if skill is None or skill != skill:
        return "white"
    return PALE if skill <= 0 or entry["learned"] == 0 else map_of(skill / top)


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


def colour_entries(rows: pd.DataFrame, top: float, shares: Sequence[float]) -> list[Entry]:
    """Return the entries that explain the colours, those of skill at ``shares`` of ``top``."""
    if not rows["skill"].notna().any():
        return []
    in_bits = rows.loc[rows["skill"].notna(), "metric"] == "bits_per_character"
    best = " or ".join([*(["100 % accuracy"] if not in_bits.all() else []), *(["0 bits"] if in_bits.any() else [])])
    meaning = f" (0 % at the floor, 100 % at {best})"
    return [*floor_entries(rows), *(skill_entry(share, top, meaning) for share in shares)]


def floor_entries(rows: pd.DataFrame) -> list[Entry]:
    """Return the entry of the colour of cells at the floor, none if there is no such cell."""
    at_floor = ((rows["skill"] <= 0) | (rows["learned"] == 0)).any()
    return [square(PALE, "at or below the floor (baseline without a model)")] if at_floor else []


def skill_entry(share: float, top: float, meaning: str = "") -> Entry:
    """Return the entry of the colour of skill at ``share`` of ``top``."""
    import matplotlib

    colour = matplotlib.colors.to_hex(matplotlib.colormaps[COLOURS](share))
    return square(colour, f"skill {_percent(share * top)}{meaning}")


def levels_entries(rows: pd.DataFrame) -> list[Entry]:
    """Return the entry that explains cells with numbers of seeds, none if there is no such cell."""
    if not ((rows["two_levels"] == True) & (rows["learned"] > 0)).any():  # noqa: E712
        return []
    return [words("2/3: seeds that exceed the floor, if the seeds lie on two levels")]


def _statuses(rows: pd.DataFrame) -> list[Entry]:
    found = rows.loc[rows["score"].isna(), "status"].unique()
    abbreviations = ", ".join(f"{SHORT.get(status, status)}: {status.replace('_', ' ')}" for status in sorted(found))
    return [words(abbreviations)] if abbreviations else []


def _percent(share: float) -> str:
    """Format a fraction in percent with two significant digits, without an exponent."""
    percent = 100 * share
    return f"{percent:.0f} %" if percent >= 10 else f"{percent:.2g} %"


def square(colour: str, label: str) -> Entry:
    """Return the entry of a colour."""
    edge = {"markeredgecolor": "#bbbbbb", "markeredgewidth": 0.5, "markersize": 6}
    return Entry(label, {"linestyle": "none", "marker": "s", "color": colour, **edge})


def words(label: str) -> Entry:
    """Return an entry without a colour."""
    return Entry(label, {"linestyle": "none"})
