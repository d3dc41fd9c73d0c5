"""Variants ranked by score, with bars that join those without a significant difference."""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from functools import partial
from string import ascii_letters
from typing import TYPE_CHECKING, Any

from lra_bench.leaderboard.sections import floor_remark
from lra_bench.records.schema import Record
from lra_bench.statistics.paired import MIN_SEEDS

from . import table_axes
from .curves import floor_entry, floor_line
from .intervals import SEED, score_bars
from .layout import Cell, Frame, Sheet, pages
from .legend import Entry
from .palette import BLACK, GREY, Look
from .style import COLUMN_INCHES, TINY, text_inches
from .variants import (
    IDENTITY,
    PANEL,
    SHEET,
    extent,
    heading,
    looks_of,
    over_seeds,
    panel_title,
    scores,
    seed_values,
    sheets,
    units,
    with_claims,
)

if TYPE_CHECKING:
    import pandas as pd
    from matplotlib.axes import Axes

Ties = Callable[["pd.DataFrame"], Sequence[Sequence[str]]]

IN_TABLE = ["hardware", "variant", "modified", "hash"]
RUN = "run lra-bench bench with two or more models on one task"
LANE_INCHES = 0.06
BAR_GAP_INCHES = 0.02
UNTESTED = "?"
MOST_LANES = 6  # with more bars next to each other, letters are used as in the leaderboard
ROWS_PER_PANEL = 55
TIE_LINE: dict[str, Any] = {"color": BLACK, "linewidth": 1.8}
TIE_THIN: dict[str, Any] = {"color": BLACK, "linewidth": 0.5}


def not_told_apart(rows: pd.DataFrame) -> list[list[str]]:
    """Return groups of labels that share a letter in the column ``ties``, in the order of the letters."""
    letters = rows["ties"].tolist()
    return [
        [label for label, own in zip(rows["label"], letters, strict=True) if letter in own]
        for letter in sorted(set("".join(letters)), key=ascii_letters.index)
    ]


def exclusions(records: Sequence[Record]) -> list[str]:
    """Return for each record the reason why it is not drawn, empty if it is drawn."""
    return ["" if record.score() is not None else "without a score" for record in records]


def table(records: Sequence[Record]) -> pd.DataFrame:
    """Return one row per variant and task, with its seeds combined and the letters of the tests of all pairs."""
    return with_claims(over_seeds(scores(records), [*SHEET, *PANEL, *IDENTITY]), records)


def draw(data: pd.DataFrame, width: float, ties: Ties = not_told_apart) -> Iterator[Sheet]:
    """Draw one panel per task with variants sorted by score, and bars that join those not shown to differ.

    All pairs are compared as in ``compare``, with Holm's correction for all pairs. A question mark marks variants with
    too few seeds to be tested; for them, a missing bar does not mean a significant difference. The dashed line is the
    strongest floor; variants of which no seed exceeds it are grey.

    Args:
        data: The result of ``table``.
        width: The width of a page in inches.
        ties: A function that returns groups of tied labels, which may overlap. It receives the rows of a panel, best
            first, with the columns ``label``, ``score``, ``seed_scores``, ``low``, ``high``, ``seeds`` and ``ties``.

    Yields:
        One sheet per protocol and section.
    """
    for parts, rows in sheets(data):
        panels = [_ranked(group, panel_title(group, rows)) for _, group in rows.groupby(PANEL, dropna=False)]
        yield _sheet(parts, panels, width, ties)


def _ranked(group: pd.DataFrame, title: str) -> pd.DataFrame:
    """Return the rows of a task, best first, with their ranks; those of few seeds or a task not learned have none."""
    lower = group["metric"].iloc[0] == "bits_per_character"
    order = group["score"].rank(ascending=lower)
    factor, axis = units(group["metric"].iloc[0])
    scaled = {name: factor * group[name].astype(float) for name in ("score", "low", "high", "floor")}
    beaten = floor_remark(
        [{"learned": _known(row["learned"]), "seeds": row["seeds"]} for row in group.to_dict("records")]
    )
    title += f" · {beaten}" if beaten else ""
    # Equal scores are sorted as in the leaderboard, so that the groups of ties are the same.
    rank = order.where((group["seeds"] >= MIN_SEEDS) & (not beaten))
    found = group.assign(order=order, rank=rank, panel=title, axis=axis, factor=factor, **scaled)
    return found.sort_values(["order", *IN_TABLE]).drop(columns="order")


def _known(value: Any) -> Any:
    return None if value is None or value != value else value


def _sheet(parts: tuple[str, ...], panels: Sequence[pd.DataFrame], width: float, ties: Ties) -> Sheet:
    import pandas as pd

    labels = list(dict.fromkeys(label for panel in panels for label in panel["label"]))
    long = max(text_inches(label, TINY) for label in labels) > 0.9
    columns = min(1 if width <= COLUMN_INCHES else 2 if long else 3, len(panels))
    rows = table_axes.measure(labels, 0.5 * width / columns)
    together = pd.concat(panels)
    look_of = looks_of(together)
    tied = [ties(panel) for panel in panels]
    cells = []
    for panel, groups in zip(panels, tied, strict=True):
        keys = list(zip(panel["model"], panel["label"], strict=True))
        start = 0
        for shown in table_axes.chunks(keys, ROWS_PER_PANEL):
            title = panel["panel"].iloc[0] + (f" (continued from row {start + 1})" if start else "")
            start += len(shown)
            painter = partial(_draw, panel=panel, keys=shown, groups=groups, rows=rows, look_of=look_of)
            cells.append(Cell(title, painter, height=rows.edges(shown)[-1]))
    legend = [*floor_entry(together), *score_bars(together, "_")]
    if any(len(group) > 1 for groups in tied for group in groups):
        legend.append(Entry("joined by a bar or a common letter: not significantly different", TIE_LINE))
    if any(_untested(panel, groups) for panel, groups in zip(panels, tied, strict=True)):
        mark = {"color": GREY, "marker": f"${UNTESTED}$", "markersize": 4, "markeredgewidth": 0.2, "linestyle": "none"}
        legend.append(Entry(f"fewer than {MIN_SEEDS} seeds: not tested", mark))
    data = pd.concat(
        [
            panel.assign(ties=panel["label"].map(_letters(panel["label"], groups)))
            for panel, groups in zip(panels, tied, strict=True)
        ]
    )
    frame = Frame(columns, left=rows.left, bottom=0.42)
    return Sheet(parts, pages(cells, width, frame, legend, heading(parts)), data)


def _draw(
    ax: Axes,
    panel: pd.DataFrame,
    keys: Sequence[tuple[str, str]],
    groups: Sequence[Sequence[str]],
    rows: table_axes.Rows,
    look_of: Mapping[tuple[str, str], Look],
) -> None:
    from matplotlib.ticker import MaxNLocator

    middles = table_axes.draw(ax, rows, keys, look_of)
    extents = dict(zip(middles.values(), itertools.pairwise(rows.edges(keys)), strict=True))
    own = panel[panel["label"].isin(middles)]
    colours = [look_of[key].colour for key in zip(own["model"], own["label"], strict=True)]
    ax.hlines(own["label"].map(middles), own["low"], own["high"], colors=colours, linewidth=0.9)
    for entry in own.to_dict("records"):
        look, middle = look_of[entry["model"], entry["label"]], middles[entry["label"]]
        look = look.faint() if entry["learned"] == 0 else look
        ax.plot([entry["score"]], [middle], linestyle="none", **look.points())
        if seeds := [entry["factor"] * value for value in seed_values(entry)]:
            ax.plot(seeds, [middle] * len(seeds), color=look.colour, gid="seed", **SEED)
    if len(floor := panel["floor"].dropna()):
        ax.axvline(floor.mean(), zorder=1, gid="floor", **floor_line())
    members = [sorted(middles[label] for label in group if label in middles) for group in groups]
    lanes = _lanes([found for found in members if len(found) > 1])
    as_letters = len(lanes) > MOST_LANES
    tags = _letters(middles, groups) if as_letters else {}
    untested = [label for label in _untested(panel, groups) if label in middles]
    inches = max((text_inches(tag, TINY) + 0.04 for tag in tags.values()), default=LANE_INCHES * (len(lanes) + 0.5))
    inches += LANE_INCHES * bool(untested)
    width = ax.bbox.width / ax.figure.dpi
    share = min(inches / width, 0.5)
    low, high = extent(panel.assign(**_seed_range(panel)), "low", "score", "high", "floor", "least", "most")
    margin = 0.05 * (high - low) or 0.5
    # Ties are drawn in a separate part of the axes, to the right of all intervals.
    ax.set_xlim(low - margin, high + margin + (high - low + 2 * margin) * share / (1 - share))
    ticks = MaxNLocator(4, steps=[1, 2, 2.5, 5, 10]).tick_values(low - margin, high + margin)
    ax.set_xticks([tick for tick in ticks if low - margin <= tick <= high + margin])
    ax.set_xlabel(panel["axis"].iloc[0])
    blended = ax.get_yaxis_transform()
    for label in untested:
        ax.text(1, middles[label], UNTESTED, transform=blended, fontsize=TINY, color=GREY, ha="right",
                va="center_baseline", gid="untested")  # fmt: skip
    for label, tag in tags.items():
        ax.text(1 - share, middles[label], tag, transform=blended, fontsize=TINY, va="center_baseline", gid="letters")
    if as_letters:
        return
    reach = share - LANE_INCHES / width * bool(untested)
    for lane, groups_of_lane in enumerate(lanes, start=1):
        across = 1 - share + reach * lane / (len(lanes) + 0.5)
        for rows_of_group in groups_of_lane:
            # The bar is thick at rows of the group and thin at other rows.
            ax.plot([across] * 2, [rows_of_group[0], rows_of_group[-1]], transform=blended, gid="tie", **TIE_THIN)
            tops, bottoms = map(list, zip(*(extents[row] for row in rows_of_group), strict=True))
            tops[0], bottoms[-1] = tops[0] + BAR_GAP_INCHES, bottoms[-1] - BAR_GAP_INCHES
            ax.vlines([across] * len(tops), tops, bottoms, transform=blended, **TIE_LINE)


def _seed_range(panel: pd.DataFrame) -> dict[str, list[float]]:
    """Return the smallest and the largest score of the seeds of each row that has no interval, NaN for others."""
    values = [[entry["factor"] * value for value in seed_values(entry)] for entry in panel.to_dict("records")]
    return {
        "least": [min(own, default=math.nan) for own in values],
        "most": [max(own, default=math.nan) for own in values],
    }


def _untested(panel: pd.DataFrame, groups: Sequence[Sequence[str]]) -> list[str]:
    """Return the labels that are in no group because they have too few seeds."""
    few = panel.loc[panel["seeds"] < MIN_SEEDS, "label"]
    return [label for label in few if not any(label in group for group in groups)]


def _letters(labels: Iterable[str], groups: Sequence[Sequence[str]]) -> dict[str, str]:
    """Return for each label the letters of its groups."""
    return {
        label: "".join(letter for letter, group in zip(ascii_letters, groups, strict=False) if label in group)
        for label in labels
    }


def _lanes(groups: Sequence[list[float]]) -> list[list[list[float]]]:
    """Assign groups of rows to lanes, each to the first lane in which it overlaps no other group."""
    lanes: list[list[list[float]]] = []
    for group in sorted(groups):
        free = next((lane for lane in lanes if lane[-1][-1] < group[0]), None)
        if free is None:
            lanes.append([group])
        else:
            free.append(group)
    return lanes
