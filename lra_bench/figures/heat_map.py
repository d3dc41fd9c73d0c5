"""Heat map of the scores of all models on all tasks, coloured by skill."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from functools import partial
from typing import TYPE_CHECKING, Any

from lra_bench.records.schema import Record

from . import table_axes
from .layout import Cell, Frame, Sheet, pages
from .legend import Entry
from .palette import BLACK, WHITE, Look, contrast
from .style import TINY, line_inches, text_inches
from .variants import IDENTITY, PANEL, SHEET, heading, looks_of, over_seeds, panel_title, scores, sheets, with_claims

if TYPE_CHECKING:
    import pandas as pd
    from matplotlib.axes import Axes

RUN = "run lra-bench bench"
COLUMN_INCHES = 0.62  # maximum width of a column
ROWS_PER_PAGE = 60
COLOURS = "cividis"
PALE = "#eeeeee"
MUTED = "#666666"
"""Colour of scores at the floor, with a contrast of more than 4.5 to ``PALE``."""
SHORT = {
    "diverged": "div", "out_of_memory": "mem", "timeout": "time", "incompatible": "–", "failed": "fail",
    "interrupted": "int",
}  # fmt: skip


def exclusions(records: Sequence[Record]) -> list[str]:
    """Return for each record the reason why it is not drawn, empty if it is drawn."""
    return ["" if r.status != "ok" or r.score() is not None else "without a score" for r in records]


def draw(data: pd.DataFrame, width: float) -> Iterator[Sheet]:
    """Draw a row per variant, best first, and a column per task, with scores as numbers and skill as colours.

    Skill is the score normalised so that the strongest floor of the task is 0 and a perfect score is 1; a score without
    a floor has no colour. The floor is printed below the name of the task. Scores of rows in which no seed exceeds the
    floor are grey, and with seeds on two levels the number of seeds that exceed it is printed. Bold scores are those of
    tables: the best with three or more seeds that exceed the floor, and those not shown to be worse. Cells without a
    score contain the status of the run, empty cells were not run.
    """
    for parts, rows in sheets(data):
        yield _sheet(parts, rows, width)


def table(records: Sequence[Record]) -> pd.DataFrame:
    """Return one row per variant and task, averaged over seeds; seeds without a score are used if there is no other."""
    import pandas as pd

    key = [*SHEET, *PANEL, *IDENTITY]
    frame = scores(records)
    scored = over_seeds(frame[frame["score"].notna()], key)
    if len(scored):
        scored = with_claims(scored, records)
    ended = frame[frame["score"].isna()].sort_values([*key, "seed"]).drop_duplicates(key)
    everything = pd.concat([scored, ended[~_keys(ended, key).isin(_keys(scored, key))]])
    columns = (
        "metric", "score", "low", "high", "seeds", "seed_scores", "learned", "two_levels", "best", "floor", "skill",
        "status",
    )  # fmt: skip
    return everything.reindex(columns=[*key, *columns])


def _keys(frame: pd.DataFrame, key: list[str]) -> pd.Series:
    return frame[key].astype(str).agg("\0".join, axis=1) if len(frame) else frame["model"]


def _sheet(parts: tuple[str, ...], rows: pd.DataFrame, width: float) -> Sheet:
    tasks = [group for _, group in rows.groupby(PANEL, dropna=False)]
    names = [panel_title(group, rows) + _floor_text(group) for group in tasks]
    order = _best_first(rows)
    look_of = looks_of(rows)
    room = table_axes.measure([label for _, label in order], 0.42 * width)
    across = min(COLUMN_INCHES, (width - room.left - 0.1) / len(tasks))
    widest = [max(text_inches(line, TINY) for line in name.split("\n")) for name in names]
    rotated = max(widest) > across - 0.04
    below = max(widest) if rotated else line_inches(TINY) * max(name.count("\n") + 1 for name in names)
    top = max(float(rows["skill"].max()), 0.01) if rows["skill"].notna().any() else 1.0
    cells = [
        Cell(
            "",
            partial(
                _draw, tasks=tasks, names=names, rotated=rotated, keys=chunk, rows=room, look_of=look_of, top=top,
                columns=(width - room.left - 0.1) / across,
            ),
            height=room.edges(chunk)[-1],
        )
        for chunk in table_axes.chunks(order, ROWS_PER_PAGE)
    ]  # fmt: skip
    frame = Frame(1, left=room.left, bottom=below + 0.08)
    return Sheet(parts, pages(cells, width, frame, _legend(rows, top), heading(parts)), rows)


def _best_first(rows: pd.DataFrame) -> list[tuple[str, str]]:
    """Return the variants sorted by the number of tasks with a score, then by their mean rank on them."""
    sign = rows["metric"].map(lambda metric: 1.0 if metric == "bits_per_character" else -1.0)
    place = (sign * rows["score"]).groupby([rows[name] for name in PANEL], dropna=False).rank(pct=True)
    means = rows.assign(place=place).groupby(["model", "label"]).agg(known=("place", "count"), place=("place", "mean"))
    means["known"] *= -1
    return list(means.sort_values(["known", "place"], kind="stable").index)


def _floor_text(rows: pd.DataFrame) -> str:
    """Return the floor of a task for the heading of its column, empty if it is unknown."""
    floor = rows["floor"].dropna()
    if not len(floor):
        return ""
    metric = rows["metric"].dropna().iloc[0]
    return f"\nfloor {floor.mean():.2f}" if metric == "bits_per_character" else f"\nfloor {100 * floor.mean():.1f}"


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
            text, weight = _text(entry), "bold" if entry["best"] is True else "normal"
            hexed = matplotlib.colors.to_hex(background)
            readable = max((WHITE, BLACK), key=partial(contrast, hexed))
            ax.text(
                column, middles[entry["label"]], text, fontsize=TINY, ha="center", va="center_baseline",
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


def _text(entry: Mapping[Any, Any]) -> str:
    score = entry["score"]
    if score is None or score != score:
        return SHORT.get(entry["status"], entry["status"])
    learned, seeds = entry["learned"], entry["seeds"]
    if entry["two_levels"] is True and learned and learned < seeds:
        return f"{int(learned)}/{int(seeds)}"
    return f"{score:.2f}" if entry["metric"] == "bits_per_character" else f"{100 * score:.1f}"


def _legend(rows: pd.DataFrame, top: float) -> list[Entry]:
    import matplotlib

    entries = []
    if rows["skill"].notna().any():
        if ((rows["skill"] <= 0) | (rows["learned"] == 0)).any():
            entries.append(_square(PALE, "at or below the floor (baseline without a model)"))
        in_bits = rows.loc[rows["skill"].notna(), "metric"] == "bits_per_character"
        best = " or ".join([*(["100 % accuracy"] if not in_bits.all() else []), *(["0 bits"] if in_bits.any() else [])])
        for share in (0.1, 0.5, 1.0):
            colour = matplotlib.colors.to_hex(matplotlib.colormaps[COLOURS](share))
            entries.append(_square(colour, f"skill {_percent(share * top)} (0 % at the floor, 100 % at {best})"))
    if (rows["score"].notna() & rows["skill"].isna()).any():
        entries.append(_square("white", "floor unknown"))
    if ((rows["two_levels"] == True) & (rows["learned"] > 0)).any():  # noqa: E712
        entries.append(Entry("2/3: seeds that exceed the floor, if the seeds lie on two levels", {"linestyle": "none"}))
    if (rows["best"] == True).any():  # noqa: E712
        entries.append(Entry("bold: best, or not shown to be worse", {"linestyle": "none"}))
    found = rows.loc[rows["score"].isna(), "status"].unique()
    abbreviations = ", ".join(f"{SHORT.get(status, status)}: {status.replace('_', ' ')}" for status in sorted(found))
    return [*entries, *([Entry(abbreviations, {"linestyle": "none"})] if abbreviations else [])]


def _percent(share: float) -> str:
    """Format a fraction in percent with two significant digits, without an exponent."""
    percent = 100 * share
    return f"{percent:.0f} %" if percent >= 10 else f"{percent:.2g} %"


def _square(colour: str, label: str) -> Entry:
    edge = {"markeredgecolor": "#bbbbbb", "markeredgewidth": 0.5, "markersize": 6}
    return Entry(label, {"linestyle": "none", "marker": "s", "color": colour, **edge})
