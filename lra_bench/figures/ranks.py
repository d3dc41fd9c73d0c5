"""Variants ranked by score, with bars that join those without a significant difference."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from functools import partial
from string import ascii_letters
from typing import TYPE_CHECKING, Any

from lra_bench.records.schema import Record
from lra_bench.statistics.intervals import t_interval
from lra_bench.statistics.paired import MIN_SEEDS
from lra_bench.statistics.ties import tie_groups

from . import table_axes
from .intervals import score_bars
from .layout import Cell, Frame, Sheet, pages
from .legend import Entry
from .palette import BLACK, GREY, Look
from .style import COLUMN_INCHES, TINY, text_inches
from .variants import IDENTITY, PANEL, SHEET, extent, heading, looks_of, over_seeds, panel_title, scores, sheets, units

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
    """Return groups of labels that share a letter in the leaderboard's ``ties``, in the order of the letters.

    ``rows`` are sorted best first and have the columns ``label``, ``score``, ``deviation`` and ``seeds``.
    """
    letters = tie_groups(rows["score"], rows["deviation"], rows["seeds"])
    return [
        [label for label, own in zip(rows["label"], letters, strict=True) if letter in own]
        for letter in sorted(set("".join(letters)), key=ascii_letters.index)
    ]


def exclusions(records: Sequence[Record]) -> list[str]:
    """Return for each record the reason why it is not drawn, empty if it is drawn."""
    return ["" if record.score() is not None else "without a score" for record in records]


def table(records: Sequence[Record]) -> pd.DataFrame:
    """Return one row per variant and task, averaged over seeds."""
    return over_seeds(scores(records), [*SHEET, *PANEL, *IDENTITY])


def draw(data: pd.DataFrame, width: float, ties: Ties = not_told_apart) -> Iterator[Sheet]:
    """Draw one panel per task with variants ranked by score, 95 % confidence intervals, and bars that join ties.

    A question mark marks variants with too few seeds to be tested; for them, a missing bar does not mean a significant
    difference. With several tasks, the first panel shows the mean ranks of the variants that have a score on all tasks.
    Its intervals (Student's t) and ties are computed over tasks.

    Args:
        data: The result of ``table``.
        width: The width of a page in inches.
        ties: A function that returns groups of tied labels, which may overlap. It receives the rows of a panel, best
            first, with the columns ``label``, ``score``, ``deviation``, ``low``, ``high`` and ``seeds``.

    Yields:
        One sheet per protocol and section.
    """
    for parts, rows in sheets(data):
        panels = [_ranked(group, panel_title(group, rows)) for _, group in rows.groupby(PANEL, dropna=False)]
        overall = _mean_ranks(panels)
        yield _sheet(parts, [*([overall] if overall is not None else []), *panels], width, ties)


def _ranked(group: pd.DataFrame, title: str) -> pd.DataFrame:
    """Return the rows of a task, best first, with their ranks."""
    lower = group["metric"].iloc[0] == "bits_per_character"
    rank = group["score"].rank(ascending=lower)
    factor, axis = units(group["metric"].iloc[0])
    scaled = {name: factor * group[name] for name in ("score", "low", "high", "deviation")}
    # Equal ranks are sorted as in the leaderboard, so that the groups of ties are the same.
    return group.assign(rank=rank, panel=title, axis=axis, **scaled).sort_values(["rank", *IN_TABLE])


def _mean_ranks(panels: Sequence[pd.DataFrame]) -> pd.DataFrame | None:
    """Return the mean ranks over tasks of the variants that have a score on all tasks.

    The result is None with fewer than two tasks or fewer than two such variants.
    """
    import pandas as pd

    complete = set.intersection(*(set(panel["label"]) for panel in panels))
    if len(panels) < 2 or len(complete) < 2:
        return None
    complete_panels = [panel[panel["label"].isin(complete)].sort_values("rank") for panel in panels]
    ranks = pd.concat([panel.assign(rank=panel["rank"].rank()) for panel in complete_panels])
    rows = []
    for _, group in ranks.groupby("label"):
        low, high = t_interval(list(group["rank"]))
        first = group.iloc[0]
        rows.append(
            {
                **{name: first[name] for name in (*SHEET, "model", "family", "label")},
                "score": group["rank"].mean(),
                "deviation": group["rank"].std(),
                "low": max(low, 1.0),
                "high": min(high, float(len(complete))),
            }
        )
    total = len(set.union(*(set(panel["label"]) for panel in panels)))
    subset = f", {len(complete)} of {total} variants" if len(complete) < total else ""
    data = pd.DataFrame(rows).sort_values(["score", "label"])
    return data.assign(
        rank=data["score"].rank(), panel=f"mean rank over {len(panels)} tasks{subset}", axis="rank", seeds=len(panels)
    )


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
    legend = score_bars(together, "_", "; of mean ranks: over tasks" if (together["axis"] == "rank").any() else "")
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
        look = look_of[entry["model"], entry["label"]]
        ax.plot([entry["score"]], [middles[entry["label"]]], linestyle="none", **look.points())
    members = [sorted(middles[label] for label in group if label in middles) for group in groups]
    lanes = _lanes([found for found in members if len(found) > 1])
    as_letters = len(lanes) > MOST_LANES
    tags = _letters(middles, groups) if as_letters else {}
    untested = [label for label in _untested(panel, groups) if label in middles]
    inches = max((text_inches(tag, TINY) + 0.04 for tag in tags.values()), default=LANE_INCHES * (len(lanes) + 0.5))
    inches += LANE_INCHES * bool(untested)
    width = ax.bbox.width / ax.figure.dpi
    share = min(inches / width, 0.5)
    low, high = extent(panel, "low", "score", "high")
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
