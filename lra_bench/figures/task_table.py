"""Tables with a row per variant and a column per task, whose cells are coloured by skill; axes with such rows."""

from __future__ import annotations

import itertools
import math
import textwrap
from abc import abstractmethod
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import partial
from typing import Any, TypeVar

import matplotlib
import numpy as np
import pandas as pd
from matplotlib.axes import Axes
from matplotlib.transforms import ScaledTranslation

from lra_bench.tables.seeds import is_known, over_seeds

from .contract import Figure
from .layout import Panel, Sheet, pages
from .legend import Entry, words
from .palette import BLACK, WHITE, Look, contrast
from .style import COLUMN_INCHES, TINY, line_inches, text_inches
from .variants import PANEL, VARIANT, in_order, looks_of, panel_title, sheets

T = TypeVar("T")
Keys = Sequence[tuple[str, str]]
"""Model and label of each row."""
LINES_PER_PAGE = 55  # maximum number of rows on a page if all names have one line
GLYPH_POINTS = 12.0  # width of the marker between a name and the axes
ROW_GAP_INCHES = 0.025
COLOURS = "cividis_r"  # from light to dark, so that scores at the floor are the palest in greyscale, too
SHOWN = (0.1, 0.5, 1.0)  # skills whose colours the legend shows
GAP_INCHES = 0.06  # between headings
NARROWEST_INCHES = 0.27  # minimum width of a column
PALE = "#eeeeee"
MUTED = "#666666"  # colour of scores at the floor, with a contrast of more than 4.5 to ``PALE``
SHORT = {
    "diverged": "div", "out_of_memory": "mem", "timeout": "time", "incompatible": "–", "failed": "fail",
    "interrupted": "int",
}  # fmt: skip


class TaskTable(Figure):
    """A table with a row per variant and a column per task.

    Attributes:
        column_inches: Maximum width of a column whose heading is narrower.
        sort_tasks: Whether columns are in alphabetical order, or in that of the rows.
    """

    column_inches = 0.62
    sort_tasks = True

    @abstractmethod
    def text(self, entry: Mapping[Any, Any]) -> str:
        """Return the text of a cell with a score."""

    @abstractmethod
    def worth(self, rows: pd.DataFrame) -> pd.Series:
        """Return a number for each row by which rows of variants are sorted, missing without a score."""

    def order(self, rows: pd.DataFrame) -> list[tuple[str, str]]:
        """Return the (model, label) pairs: those with scores on more tasks first, then those of higher mean worth."""
        found = self.worth(rows).groupby([rows["model"], rows["label"]]).agg(["count", "mean"])
        return list(found.sort_values(["count", "mean"], ascending=False, kind="stable").index)

    def legend(self, rows: pd.DataFrame) -> list[Entry]:
        """Return the entries that explain grey cells, numbers of seeds and statuses."""
        at_floor = ((rows["skill"] <= 0) | (rows["learned"] == 0)).any()
        entries = [square(PALE, "not shown to exceed the floor", "palest")] if at_floor else []
        if (rows["two_levels"].eq(True) & (rows["learned"] > 0)).any():
            entries.append(words("2/3: seeds that exceed the floor, if the seeds lie on two levels"))
        statuses = sorted(rows.loc[rows["score"].isna(), "status"].unique())
        names = ", ".join(f"{SHORT.get(status, status)}: {status.replace('_', ' ')}" for status in statuses)
        return [*entries, *([words(names)] if names else [])]

    def title(self, rows: pd.DataFrame, sheet: pd.DataFrame) -> str:
        """Return the heading of a column from its rows and those of the sheet: the task and its floor."""
        floor = rows["floor"].dropna()
        if not len(floor):
            return panel_title(rows, sheet)
        metric = next(iter(rows["metric"].dropna()), None)  # None if no run has a score
        text = f"{floor.mean():.2f}" if metric == "bits_per_character" else f"{100 * floor.mean():.1f}"
        return f"{panel_title(rows, sheet)}\nfloor {text}"

    def draw(self, data: pd.DataFrame, width: float) -> Iterator[Sheet]:
        """Yield one sheet per protocol and section; tasks and rows that do not fit are in further panels."""
        for parts, rows in sheets(data):
            tasks = [group for _, group in rows.groupby(PANEL, dropna=False, sort=self.sort_tasks)]
            keys = in_order(rows) if hasattr(rows["model"], "cat") else self.order(rows)
            room = 0.4 * width
            widest = max(text_inches(_wrapped(label, room), TINY) for _, label in keys)
            inches = width - widest - GLYPH_POINTS / 72 - 0.15
            titles = [self.title(group, rows) for group in tasks]
            parts_of_tasks = list(chunks(list(zip(tasks, titles, strict=True)), int(inches / NARROWEST_INCHES)))
            most = inches / len(parts_of_tasks[0])
            headings = {title: _wrapped(title, most - GAP_INCHES, within_words=False) for title in titles}
            longest = max(text_inches(heading, TINY) for heading in headings.values()) + GAP_INCHES
            below = line_inches(TINY) * (2 + max(heading.count("\n") for heading in headings.values()))
            if longest > most:
                headings, below = {}, 0.1 + max(text_inches(title, TINY) for title in titles)
            across = min(max(self.column_inches, longest), most)  # wider if headings then need not be rotated
            painter = partial(_draw, self, looks_of(rows), room, inches / across, headings)
            panels = [
                Panel("", partial(painter, own, chunk), row_edges(chunk, room)[-1], below)
                for own in parts_of_tasks
                for chunk in parts_of_rows(_of_tasks(keys, [group for group, _ in own]), room)
            ]
            known = rows["skill"].notna().any()
            skills = [square(_colour_of(share), f"skill {100 * share:g} %") for share in SHOWN] if known else []
            drawn, explained = pages(panels, width, 1, parts, skills, self.legend(rows))
            yield Sheet(parts, drawn, rows, explained)


def averaged(frame: pd.DataFrame) -> pd.DataFrame:
    """Return one row per variant and task with its seeds combined; without a score, with the status of the first."""
    return over_seeds(frame, VARIANT, {"status": "first"})


def _draw(
    kind: TaskTable,
    look_of: Mapping[tuple[str, str], Look],
    room: float,
    columns: float,
    headings: Mapping[str, str],
    tasks: Sequence[tuple[pd.DataFrame, str]],
    keys: Keys,
    ax: Axes,
) -> None:
    """Draw a panel of tasks with their titles, wrapped as in ``headings``, or rotated if there are none."""
    middles = draw_rows(ax, room, keys, look_of)
    colours = np.ones((len(keys), len(tasks), 4))
    place = {key: number for number, key in enumerate(keys)}
    for column, (group, _) in enumerate(tasks):
        for entry in group.to_dict("records"):
            row = place.get((entry["model"], entry["label"]))
            if row is None:
                continue
            background = _colour(entry)
            colours[row, column] = matplotlib.colors.to_rgba(background)
            readable = max((WHITE, BLACK), key=partial(contrast, background))
            ax.text(
                column, middles[entry["label"]], _text(entry, kind), fontsize=TINY, ha="center",
                va="center_baseline", weight="bold" if entry.get("best") is True else "normal", gid="tag",
                color=MUTED if entry["learned"] == 0 else readable,
            )  # fmt: skip
    ax.pcolormesh(
        np.arange(len(tasks) + 1) - 0.5, row_edges(keys, room), colours, edgecolors="white", linewidth=0.8
    )  # fmt: skip
    ax.set_xlim(-0.5, columns - 0.5)
    ax.grid(visible=False)
    ax.spines[:].set_visible(False)
    names = [headings.get(title, title) for _, title in tasks]
    ax.set_xticks(range(len(tasks)), names, fontsize=TINY, rotation=0 if headings else 90)
    ax.tick_params(axis="x", length=0)


def _of_tasks(keys: Keys, tasks: Sequence[pd.DataFrame]) -> Keys:
    """Return the rows with a run of any of the tasks."""
    own = {key for group in tasks for key in zip(group["model"], group["label"], strict=True)}
    return [key for key in keys if key in own]


def _colour(entry: Mapping[Any, Any]) -> str:
    if not is_known(entry["skill"]):
        return WHITE
    return PALE if entry["skill"] <= 0 or entry["learned"] == 0 else _colour_of(entry["skill"])


def _colour_of(skill: float) -> str:
    return matplotlib.colors.to_hex(matplotlib.colormaps[COLOURS](min(skill, 1.0)))


def _text(entry: Mapping[Any, Any], kind: TaskTable) -> str:
    """Return the status of a cell without a score, the number of seeds on the upper of two levels, or its text."""
    if not is_known(entry["score"]):
        return SHORT.get(entry["status"], entry["status"])
    learned, seeds = entry["learned"], entry["seeds"]
    if entry["two_levels"] is True and learned and learned < seeds:
        return f"{int(learned)}/{int(seeds)}"
    return kind.text(entry)


def square(colour: str, label: str, mark: str = "") -> Entry:
    """Return the entry of a colour."""
    edge = {"markeredgecolor": "#bbbbbb", "markeredgewidth": 0.5, "markersize": 6}
    return Entry(label, {"linestyle": "none", "marker": "s", "color": colour, **edge}, mark)


def _wrapped(label: str, room: float, within_words: bool = True) -> str:
    """Wrap the lines of a label to ``room`` inches, only between words unless ``within_words``."""
    most = int(room / text_inches("n", TINY))
    return "\n".join(textwrap.fill(line, most, break_long_words=within_words) for line in label.split("\n"))


def row_edges(keys: Keys, room: float) -> list[float]:
    """Return the upper edges of the rows and the lower edge of the last, in inches from the top."""
    lines = (_wrapped(label, room).count("\n") + 1 for _, label in keys)
    return list(itertools.accumulate((count * line_inches(TINY) + ROW_GAP_INCHES for count in lines), initial=0.0))


def parts_of_rows(keys: Keys, room: float) -> Iterator[Keys]:
    """Divide rows into parts of similar height that fit on a page, with names wrapped to ``room`` inches."""
    edges = row_edges(keys, room)
    most = LINES_PER_PAGE * (line_inches(TINY) + ROW_GAP_INCHES)
    height = edges[-1] / math.ceil(edges[-1] / most)
    placed = zip(keys, map(sum, itertools.pairwise(edges)), strict=True)
    for _, part in itertools.groupby(placed, lambda each: int(each[1] / 2 / height)):
        yield [key for key, _ in part]


def chunks(items: Sequence[T], most: int) -> Iterator[Sequence[T]]:
    """Yield ``items`` in as few chunks of similar size as possible, with at most ``most`` items each."""
    size = max(-(-len(items) // max(-(-len(items) // most), 1)), 1)
    for start in range(0, len(items), size):
        yield items[start : start + size]


def panels_of_rows(
    groups: Sequence[tuple[str, pd.DataFrame]], width: float, paint: Callable[[Axes, pd.DataFrame, pd.DataFrame], None]
) -> tuple[list[Panel], int]:
    """Return panels with one row per variant, divided so that each fits on a page.

    Args:
        groups: The title and the rows of each group.
        width: Width of the page in inches.
        paint: Draws a part of a group. It is called with the axes, the group, and the rows of the part, with the
            columns ``at`` (the place on the y axis) and ``look``.

    Returns:
        The panels, and the number of panels that are next to each other.
    """
    look_of = looks_of(pd.concat([group for _, group in groups]))
    longest = max(text_inches(label, TINY) for _, label in look_of)
    columns = min(1 if width <= COLUMN_INCHES else 2 if longest > 0.9 else 3, len(groups))
    room = 0.5 * width / columns - 0.3

    def draw_part(group: pd.DataFrame, keys: Keys, ax: Axes) -> None:
        places = draw_rows(ax, room, keys, look_of)
        own = group[group["label"].isin(places)]
        looks = pd.Series([look_of[key] for key in zip(own["model"], own["label"], strict=True)], own.index)
        paint(ax, group, own.assign(at=own["label"].map(places), look=looks))

    panels = []
    for title, group in groups:
        start = 0
        for keys in parts_of_rows(list(zip(group["model"], group["label"], strict=True)), room):
            heading = title + (f" (continued from row {start + 1})" if start else "")
            panels.append(Panel(heading, partial(draw_part, group, keys), row_edges(keys, room)[-1]))
            start += len(keys)
    return panels, columns


def draw_rows(ax: Axes, room: float, keys: Keys, look_of: Mapping[tuple[str, str], Look]) -> dict[str, float]:
    """Draw the names, wrapped to ``room`` inches, and markers of rows at the left; return the y of each label."""
    labels = [label for _, label in keys]
    ends = row_edges(keys, room)
    middles = [(above + below) / 2 for above, below in itertools.pairwise(ends)]
    ax.set_ylim(ends[-1], 0)
    ax.set_yticks(middles, [_wrapped(label, room) for label in labels], fontsize=TINY, linespacing=1.0)
    ax.tick_params(axis="y", length=0, pad=GLYPH_POINTS)
    ax.grid(visible=False, axis="y")
    left = ax.get_yaxis_transform() + ScaledTranslation(-GLYPH_POINTS / 144, 0, ax.figure.dpi_scale_trans)
    for key, middle in zip(keys, middles, strict=True):
        ax.plot([0], [middle], transform=left, clip_on=False, linestyle="none", **look_of[key].points())
    return dict(zip(labels, middles, strict=True))
