"""The figure of variants ranked by score."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from functools import partial

import pandas as pd
from matplotlib.axes import Axes

from lra_bench.records.schema import Record
from lra_bench.statistics.paired import MIN_SEEDS
from lra_bench.tables.sections import floor_remark
from lra_bench.tables.seeds import known, over_seeds

from .contract import Figure
from .curves import limits
from .layout import Panel, Sheet, pages
from .legend import FLOOR, draw_scores, floor_entry, floor_notes, score_bars, words
from .palette import BLACK, GREY, Look
from .style import COLUMN_INCHES, TINY, text_inches
from .task_table import Keys, draw_rows, parts_of_rows, row_edges
from .variants import PANEL, VARIANT, looks_of, panel_title, scaled, score_extent, scores, sheets, units_of, with_claims

IN_TABLE = ["hardware", "variant", "modified", "hash"]
UNTESTED = "?"
TAG_POINTS = 4.0  # distance of letters from the axes


class _Ranks(Figure):
    """Variants ranked by score, with letters that show significant differences.

    Two variants that have letters but none in common differ significantly, and the better one exceeds the floor. All
    pairs are tested, with Holm's correction for all pairs of a task. A question mark marks variants with too few
    seeds to be tested; for them, a missing letter does not mean a significant difference. The dashed line is the
    strongest floor; variants of which no seed is shown to exceed it are grey.
    """

    remedy = "run lra-bench bench with two or more models on one task"

    def has_data(self, record: Record) -> object:
        return record.score() is not None

    def table(self, records: Sequence[Record]) -> pd.DataFrame:
        return with_claims(over_seeds(scores(records), VARIANT), records)

    def draw(self, data: pd.DataFrame, width: float) -> Iterator[Sheet]:
        for parts, rows in sheets(data):
            groups = [_ranked(group, panel_title(group, rows)) for _, group in rows.groupby(PANEL, dropna=False)]
            together = pd.concat(groups)
            longest = max(text_inches(label, TINY) for label in together["label"])
            columns = min(1 if width <= COLUMN_INCHES else 2 if longest > 0.9 else 3, len(groups))
            room = 0.5 * width / columns - 0.3
            panels = [panel for group in groups for panel in _panels(group, room, looks_of(together))]
            marks = [*floor_entry(together), *score_bars(together, "_")]
            letters = ["".join(group["ties"]) for group in groups]
            if any(len(set(found)) < len(found) for found in letters):
                marks.append(
                    words("letters: rows that share none differ significantly, and the better one exceeds the floor")
                )
            if _untested(together).any():
                marks.append(words(f"{UNTESTED}: fewer than {MIN_SEEDS} seeds, not tested"))
            drawn, explained = pages(panels, width, columns, parts, [], marks)
            yield Sheet(parts, drawn, together, [*explained, *floor_notes(together)])


def _ranked(group: pd.DataFrame, title: str) -> pd.DataFrame:
    """Return the rows of a task, best first, with their ranks; those of few seeds or a task not learned have none."""
    lower = group["metric"].iloc[0] == "bits_per_character"
    order = group["score"].rank(ascending=lower)
    factor, axis = units_of(group)
    learned = [{"learned": known(row["learned"]), "seeds": row["seeds"]} for row in group.to_dict("records")]
    beaten = floor_remark(learned)
    title += f" · {beaten}" if beaten else ""
    # Equal scores are sorted as in the leaderboard, so that the groups of ties are the same.
    rank = order.where((group["seeds"] >= MIN_SEEDS) & (not beaten))
    found = group.assign(order=order, rank=rank, panel=title, axis=axis, factor=factor)
    return scaled(found, factor).sort_values(["order", *IN_TABLE]).drop(columns="order")


def _panels(group: pd.DataFrame, room: float, look_of: Mapping[tuple[str, str], Look]) -> Iterator[Panel]:
    """Yield panels whose height fits on a page, with the names of rows wrapped to ``room`` inches."""
    start = 0
    for keys in parts_of_rows(list(zip(group["model"], group["label"], strict=True)), room):
        title = group["panel"].iloc[0] + (f" (continued from row {start + 1})" if start else "")
        start += len(keys)
        yield Panel(title, partial(_draw, group, keys, room, look_of), row_edges(keys, room)[-1])


def _draw(group: pd.DataFrame, keys: Keys, room: float, look_of: Mapping[tuple[str, str], Look], ax: Axes) -> None:
    middles = draw_rows(ax, room, keys, look_of)
    own = group[group["label"].isin(middles)]
    looks = [look_of[key] for key in zip(own["model"], own["label"], strict=True)]
    draw_scores(ax, own, looks, own["label"].map(middles), across=True)
    if len(floor := group["floor"].dropna()):
        ax.axvline(floor.mean(), zorder=1, gid="floor", **FLOOR)
    ax.set_xlabel(group["axis"].iloc[0])
    limits(ax, *score_extent(group), axis="x")
    for label, tag, untested in zip(own["label"], own["ties"], _untested(own), strict=True):
        ax.annotate(
            UNTESTED if untested else tag, (1, middles[label]), (TAG_POINTS, 0), ax.get_yaxis_transform(),
            "offset points", fontsize=TINY, va="center_baseline", color=GREY if untested else BLACK,
            gid="untested" if untested else "tie",
        )  # fmt: skip


def _untested(rows: pd.DataFrame) -> pd.Series:
    """Return for each row whether it has no letter because it has too few seeds."""
    return (rows["seeds"] < MIN_SEEDS) & (rows["ties"] == "")


ranks = _Ranks()
