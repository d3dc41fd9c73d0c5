"""The figure of the gain of self-pretraining over training from scratch."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from functools import partial
from typing import Any

import pandas as pd
from matplotlib.axes import Axes

from lra_bench.measurements.pretraining import objective_of
from lra_bench.records.schema import Record
from lra_bench.tables.claims import gains, key_of, place_of, rankings, without_pretraining
from lra_bench.tables.pair_tests import Comparison, Entry
from lra_bench.tables.seeds import is_known

from .contract import Figure
from .layout import Panel, Sheet, pages
from .legend import SEED, bar
from .legend import Entry as Line
from .palette import AT_FLOOR, GREY, Look
from .style import COLUMN_INCHES, TINY, text_inches
from .task_table import Keys, draw_rows, parts_of_rows, row_edges
from .variants import PANEL, VARIANT, identity, looks_of, panel_title, sheets

ZERO: dict[str, Any] = {"color": GREY, "linewidth": 0.8}
"""Look of the line without a gain, as keyword arguments of matplotlib."""


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
            low, high = sorted(sign * end for end in (found.low, found.high) if end is not None) or (None, None)
            rows.append(
                {name: value for name, value in identity(entry.first).items() if name != "seed"}
                | {"metric": found.metric, "seeds": len(found.shared_seeds), "gain": sign * found.difference}
                | {"low": low, "high": high, "unit": found.unit, "gains": _of_seeds(entry, plain, found, sign)}
                | {"score": found.score_a, "scratch": found.score_b, "verdict": found.verdict_of_a}
                | {"clears_floor": bool(found.clears_floor_a or found.clears_floor_b)}
            )
        data = pd.DataFrame(rows)
        return data if data.empty else data.sort_values([*VARIANT], kind="stable", ignore_index=True)

    def draw(self, data: pd.DataFrame, width: float) -> Iterator[Sheet]:
        for parts, rows in sheets(data):
            groups = [group.sort_values("gain", ascending=False) for _, group in rows.groupby(PANEL, dropna=False)]
            longest = max(text_inches(label, TINY) for label in rows["label"])
            columns = min(1 if width <= COLUMN_INCHES else 2 if longest > 0.9 else 3, len(groups))
            room, look_of = 0.5 * width / columns - 0.3, looks_of(rows)
            panels = []
            for group in groups:
                for keys in parts_of_rows(list(zip(group["model"], group["label"], strict=True)), room):
                    painter = partial(_draw, group, keys, room, look_of)
                    panels.append(Panel(panel_title(group, rows), painter, row_edges(keys, room)[-1]))
            drawn, explained = pages(panels, width, columns, parts, [], _legend(rows))
            yield Sheet(parts, drawn, rows, explained)


def _gains_of(records: Sequence[Record]) -> Iterator[tuple[Entry, Entry, Comparison]]:
    """Yield each pretrained variant, the same one without pretraining, and their comparison."""
    found = rankings(records)
    for place, ranking in found.items():
        for key, comparison in gains(found, place).items():
            entry = ranking.entries[key]
            plain = without_pretraining(entry, found, place)
            if plain is not None and comparison.shared_seeds:
                yield entry, plain, comparison


def _of_seeds(entry: Entry, plain: Entry, found: Comparison, sign: int) -> list[float]:
    """Return the gain for each seed that both variants have."""
    pairs = ((entry.records[seed].score(), plain.records[seed].score()) for seed in found.shared_seeds)
    return [sign * (a - b) for a, b in pairs if a is not None and b is not None]


def _draw(group: pd.DataFrame, keys: Keys, room: float, look_of: Mapping[tuple[str, str], Look], ax: Axes) -> None:
    middles = draw_rows(ax, room, keys, look_of)
    in_bits = group["metric"].iloc[0] == "bits_per_character"
    factor = 1.0 if in_bits else 100.0
    ax.axvline(0.0, zorder=1, gid="zero", **ZERO)
    for entry in group[group["label"].isin(middles)].to_dict("records"):
        look, middle = look_of[entry["model"], entry["label"]], middles[entry["label"]]
        look = look if entry["clears_floor"] else look.faint()
        if is_known(entry["low"]):
            ends = factor * entry["low"], factor * entry["high"]
            ax.hlines(middle, *ends, colors=look.colour, linewidth=0.9)
        ax.plot([factor * entry["gain"]], [middle], linestyle="none", **look.points())
        if len(seeds := entry["gains"]) > 1:
            ax.plot([factor * each for each in seeds], [middle] * len(seeds), color=look.colour, gid="seed", **SEED)
    ax.margins(x=0.06)
    ax.locator_params(axis="x", nbins=4, steps=[1, 2, 2.5, 5, 10])
    ax.set_xlabel("gain (bits per character)" if in_bits else "gain (percentage points)")


def _legend(rows: pd.DataFrame) -> list[Line]:
    entries = [Line("no gain", ZERO)]
    if units := [unit for unit in ("seeds", "examples") if (rows["low"].notna() & (rows["unit"] == unit)).any()]:
        entries.append(bar(f"95 % confidence interval over {' or '.join(units)}", "_"))
    if (rows["gains"].map(len) > 1).any():
        entries.append(Line("small marks: each seed", {**SEED, "color": GREY}))
    if not rows["clears_floor"].all():
        grey = {"color": AT_FLOOR, "marker": "o", "markersize": 4, "linestyle": "none"}
        entries.append(Line("grey: neither exceeds the floor", grey))
    return entries


gain = _Gain()
