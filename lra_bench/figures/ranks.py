"""Figures with a row per variant and a panel per task: ranks by score, and gains of pretraining."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

import pandas as pd
from matplotlib.axes import Axes

from lra_bench.measurements.pretraining import objective_of
from lra_bench.records.schema import Record
from lra_bench.statistics.paired import MIN_SEEDS
from lra_bench.tables.claims import gains, key_of, place_of, rankings, without_pretraining
from lra_bench.tables.pair_tests import Comparison, Entry
from lra_bench.tables.sections import floor_remark
from lra_bench.tables.seeds import is_known, known, over_seeds

from .contract import Figure
from .curves import limits
from .layout import Sheet, pages
from .legend import FLOOR, SEED, bar, draw_scores, floor_entry, floor_notes, score_bars, words
from .legend import Entry as LegendEntry
from .palette import AT_FLOOR, BLACK, GREY
from .style import TINY
from .task_table import panels_of_rows
from .variants import PANEL, VARIANT, identity, panel_title, scaled, score_extent, scores, sheets, units_of, with_claims

IN_TABLE = ["hardware", "variant", "modified", "hash"]
UNTESTED = "?"
TAG_POINTS = 4.0  # distance of letters from the axes
ZERO: dict[str, Any] = {"color": GREY, "linewidth": 0.8}
"""Look of the line without a gain, as keyword arguments of matplotlib."""


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
            panels, columns = panels_of_rows([(group["panel"].iloc[0], group) for group in groups], width, _draw)
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


def _draw(ax: Axes, group: pd.DataFrame, rows: pd.DataFrame) -> None:
    draw_scores(ax, rows, list(rows["look"]), rows["at"], across=True)
    if len(floor := group["floor"].dropna()):
        ax.axvline(floor.mean(), zorder=1, gid="floor", **FLOOR)
    ax.set_xlabel(group["axis"].iloc[0])
    limits(ax, *score_extent(group), axis="x")
    for at, tag, untested in zip(rows["at"], rows["ties"], _untested(rows), strict=True):
        ax.annotate(
            UNTESTED if untested else tag, (1, at), (TAG_POINTS, 0), ax.get_yaxis_transform(),
            "offset points", fontsize=TINY, va="center_baseline", color=GREY if untested else BLACK,
            gid="untested" if untested else "tie",
        )  # fmt: skip


def _untested(rows: pd.DataFrame) -> pd.Series:
    """Return for each row whether it has no letter because it has too few seeds."""
    return (rows["seeds"] < MIN_SEEDS) & (rows["ties"] == "")


class _Gain(Figure):
    """Gain of self-pretraining: score of each pretrained system minus that of the same system trained from scratch.

    Values are paired by seed and positive where pretraining improves the score. Bars are 95 % confidence intervals,
    over seeds with five or more, otherwise over test examples; small marks are the gains of the seeds. A gain is grey
    if neither system exceeds the strongest floor in every seed. Systems are in the order of their gains.
    """

    remedy = "run lra-bench bench pretrain=none,masked with the same task, model, protocol and seeds"
    missing = "without a score"

    def exclusions(self, records: Sequence[Record]) -> list[str]:
        used = {(place_of(each.first), each.key) for entry, plain, _ in _gains_of(records) for each in (entry, plain)}
        return ["" if (place_of(each), key_of(each)) in used else self._reason(each) for each in records]

    def _reason(self, record: Record) -> str:
        if record.status != "ok" or record.score() is None:
            return self.missing
        return "without the same cell from scratch" if objective_of(record.config) else "without a pretrained cell"

    def table(self, records: Sequence[Record]) -> pd.DataFrame:
        """Return one row per pretrained variant and task.

        ``gain``, ``low`` and ``high`` are improvements, in units of the score, with the ``unit`` of the interval;
        ``gains`` are those of the shared seeds, ``scratch`` the mean score without pretraining.
        """
        rows = []
        for entry, plain, found in _gains_of(records):
            sign = 1 if entry.first.higher_is_better else -1
            pairs = [(entry.records[seed].score(), plain.records[seed].score()) for seed in found.shared_seeds]
            of_seeds = [sign * (a - b) for a, b in pairs if a is not None and b is not None]
            low, high = sorted(sign * end for end in (found.low, found.high) if end is not None) or (None, None)
            rows.append(
                {name: value for name, value in identity(entry.first).items() if name != "seed"}
                | {"metric": found.metric, "seeds": len(found.shared_seeds), "gain": sign * found.difference}
                | {"low": low, "high": high, "unit": found.unit, "gains": of_seeds}
                | {"score": found.score_a, "scratch": found.score_b, "verdict": found.verdict_of_a}
                | {"clears_floor": bool(found.clears_floor_a or found.clears_floor_b)}
            )
        data = pd.DataFrame(rows)
        return data if data.empty else data.sort_values([*VARIANT], kind="stable", ignore_index=True)

    def draw(self, data: pd.DataFrame, width: float) -> Iterator[Sheet]:
        for parts, rows in sheets(data):
            groups = [group.sort_values("gain", ascending=False) for _, group in rows.groupby(PANEL, dropna=False)]
            titled = [(panel_title(group, rows), group) for group in groups]
            panels, columns = panels_of_rows(titled, width, _draw_gain)
            drawn, explained = pages(panels, width, columns, parts, [], _gain_legend(rows))
            yield Sheet(parts, drawn, rows, explained)


def _gains_of(records: Sequence[Record]) -> Iterator[tuple[Entry, Entry, Comparison]]:
    """Yield each pretrained variant, its counterpart that was trained from scratch, and their comparison."""
    found = rankings(records)
    for place, ranking in found.items():
        for key, comparison in gains(found, place).items():
            entry = ranking.entries[key]
            plain = without_pretraining(entry, found, place)
            if plain is not None and comparison.shared_seeds:
                yield entry, plain, comparison


def _draw_gain(ax: Axes, group: pd.DataFrame, rows: pd.DataFrame) -> None:
    in_bits = group["metric"].iloc[0] == "bits_per_character"
    factor = 1.0 if in_bits else 100.0
    ax.axvline(0.0, zorder=1, gid="zero", **ZERO)
    for entry in rows.to_dict("records"):
        look = entry["look"] if entry["clears_floor"] else entry["look"].faint()
        if is_known(entry["low"]):
            ax.hlines(entry["at"], factor * entry["low"], factor * entry["high"], colors=look.colour, linewidth=0.9)
        ax.plot([factor * entry["gain"]], [entry["at"]], linestyle="none", **look.points())
        if len(seeds := entry["gains"]) > 1:
            ax.plot(
                [factor * each for each in seeds], [entry["at"]] * len(seeds), color=look.colour, gid="seed", **SEED
            )
    ax.margins(x=0.06)
    ax.locator_params(axis="x", nbins=4, steps=[1, 2, 2.5, 5, 10])
    ax.set_xlabel("gain (bits per character)" if in_bits else "gain (percentage points)")


def _gain_legend(rows: pd.DataFrame) -> list[LegendEntry]:
    entries = [LegendEntry("no gain", ZERO)]
    if units := [unit for unit in ("seeds", "examples") if (rows["low"].notna() & (rows["unit"] == unit)).any()]:
        entries.append(bar(f"95 % confidence interval over {' or '.join(units)}", "_"))
    if (rows["gains"].map(len) > 1).any():
        entries.append(LegendEntry("small marks: each seed", {**SEED, "color": GREY}))
    if not rows["clears_floor"].all():
        grey = {"color": AT_FLOOR, "marker": "o", "markersize": 4, "linestyle": "none"}
        entries.append(LegendEntry("grey: neither exceeds the floor", grey))
    return entries


ranks, gain = _Ranks(), _Gain()
