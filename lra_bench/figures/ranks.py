"""Variants ranked by score, with letters that those without a significant difference share.

All pairs are tested, with Holm's correction for all pairs of a task. A question mark marks variants with too few seeds
to be tested; for them, a missing letter does not mean a significant difference. The dashed line is the strongest floor;
variants of which no seed exceeds it are grey.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from functools import partial
from typing import TYPE_CHECKING

from lra_bench.records.schema import Record
from lra_bench.statistics.paired import MIN_SEEDS
from lra_bench.tables.sections import floor_remark
from lra_bench.tables.seeds import known, over_seeds

from . import table_axes
from .layout import Cell, Sheet, pages
from .legend import SEED, floor_entry, floor_line, floor_notes, score_bars, words
from .palette import BLACK, GREY, Look
from .style import COLUMN_INCHES, TINY, text_inches
from .variants import (
    IDENTITY,
    PANEL,
    SHEET,
    extent,
    heading,
    looks_of,
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

IN_TABLE = ["hardware", "variant", "modified", "hash"]
RUN = "run lra-bench bench with two or more models on one task"
UNTESTED = "?"
TAG_POINTS = 4.0
"""Distance of letters from the axes."""
ROWS_PER_PANEL = 55


def exclusions(records: Sequence[Record]) -> list[str]:
    """Return for each record the reason why it is not drawn, empty if it is drawn."""
    return ["" if record.score() is not None else "without a score" for record in records]


def table(records: Sequence[Record]) -> pd.DataFrame:
    """Return one row per variant and task, with its seeds combined and the letters of the tests of all pairs."""
    return with_claims(over_seeds(scores(records), [*SHEET, *PANEL, *IDENTITY]), records)


def draw(data: pd.DataFrame, width: float) -> Iterator[Sheet]:
    """Yield one sheet per protocol and section, with one panel per task."""
    for parts, rows in sheets(data):
        panels = [_ranked(group, panel_title(group, rows)) for _, group in rows.groupby(PANEL, dropna=False)]
        yield _sheet(parts, panels, width)


def _ranked(group: pd.DataFrame, title: str) -> pd.DataFrame:
    """Return the rows of a task, best first, with their ranks; those of few seeds or a task not learned have none."""
    lower = group["metric"].iloc[0] == "bits_per_character"
    order = group["score"].rank(ascending=lower)
    factor, axis = units(group["metric"].iloc[0])
    scaled = {name: factor * group[name].astype(float) for name in ("score", "low", "high", "floor")}
    beaten = floor_remark(
        [{"learned": known(row["learned"]), "seeds": row["seeds"]} for row in group.to_dict("records")]
    )
    title += f" · {beaten}" if beaten else ""
    # Equal scores are sorted as in the leaderboard, so that the groups of ties are the same.
    rank = order.where((group["seeds"] >= MIN_SEEDS) & (not beaten))
    found = group.assign(order=order, rank=rank, panel=title, axis=axis, factor=factor, **scaled)
    return found.sort_values(["order", *IN_TABLE]).drop(columns="order")


def _sheet(parts: tuple[str, ...], panels: Sequence[pd.DataFrame], width: float) -> Sheet:
    import pandas as pd

    together = pd.concat(panels)
    longest = max(text_inches(label, TINY) for label in together["label"])
    columns = min(1 if width <= COLUMN_INCHES else 2 if longest > 0.9 else 3, len(panels))
    room = 0.5 * width / columns - 0.3
    look_of = looks_of(together)
    cells = []
    for panel in panels:
        start = 0
        for shown in table_axes.chunks(list(zip(panel["model"], panel["label"], strict=True)), ROWS_PER_PANEL):
            title = panel["panel"].iloc[0] + (f" (continued from row {start + 1})" if start else "")
            start += len(shown)
            painter = partial(_draw, panel=panel, keys=shown, room=room, look_of=look_of)
            cells.append(Cell(title, painter, height=table_axes.edges([label for _, label in shown], room)[-1]))
    legend = [*floor_entry(together), *score_bars(together, "_")]
    letters = ["".join(panel["ties"]) for panel in panels]
    if any(len(set(found)) < len(found) for found in letters):
        legend.append(words("a common letter: not significantly different"))
    if _untested(together).any():
        legend.append(words(f"{UNTESTED}: fewer than {MIN_SEEDS} seeds, not tested"))
    return Sheet(parts, pages(cells, width, columns, legend, heading(parts)), together, floor_notes(together))


def _draw(
    ax: Axes,
    panel: pd.DataFrame,
    keys: Sequence[tuple[str, str]],
    room: float,
    look_of: Mapping[tuple[str, str], Look],
) -> None:
    middles = table_axes.draw(ax, room, keys, look_of)
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
    ax.set_xlabel(panel["axis"].iloc[0])
    ax.locator_params(axis="x", nbins=4, steps=[1, 2, 2.5, 5, 10])
    low, high = extent(panel, "low", "score", "high", "floor")
    of_seeds = [entry["factor"] * value for entry in panel.to_dict("records") for value in seed_values(entry)]
    low, high = min([low, *of_seeds]), max([high, *of_seeds])
    margin = 0.05 * (high - low) or 0.5
    ax.set_xlim(low - margin, high + margin)
    for label, tag, untested in zip(own["label"], own["ties"], _untested(own), strict=True):
        ax.annotate(
            UNTESTED if untested else tag, (1, middles[label]), (TAG_POINTS, 0), ax.get_yaxis_transform(),
            "offset points", fontsize=TINY, va="center_baseline", color=GREY if untested else BLACK,
            gid="untested" if untested else "tie",
        )  # fmt: skip


def _untested(panel: pd.DataFrame) -> pd.Series:
    """Return for each row whether it has no letter because it has too few seeds."""
    return (panel["seeds"] < MIN_SEEDS) & (panel["ties"] == "")
