"""The first length at which a variant is faster, and at which it is leaner, than the transformer beside it."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from functools import partial
from typing import TYPE_CHECKING, Any

from lra_bench.records.schema import Record

from . import table_axes
from .layout import Cell, Frame, Sheet, pages
from .legend import Entry
from .palette import BLACK, REFERENCE, Look
from .speed_vs_length import QUANTITIES, SPOKEN
from .speed_vs_length import table as step_costs
from .style import COLUMN_INCHES
from .ticks import length_name
from .variants import PANEL, SHEET, heading, looks_of, panel_title, sheets

if TYPE_CHECKING:
    import pandas as pd
    from matplotlib.axes import Axes

RUN = f"run lra-bench bench with model={REFERENCE} and others on the same hardware, with several measure.speed_lengths"
MACHINE = [*PANEL, "modified", "hardware", "batch"]
MARK_INCHES = 0.022  # above and below the middle of a row
MARKERS = {"time": ">", "memory": "o"}
WORDS = {"time": "faster", "memory": "leaner"}
ROWS_PER_PANEL = 50


def first_better(
    own: Mapping[int, float], reference: Mapping[int, float], failed: float = math.inf
) -> tuple[str, float | None]:
    """How and from which length on ``own`` costs less than ``reference``, both cost by length.

    Between two measured lengths the crossing is where the difference of the log costs, taken as a straight line over
    the log of the length, is 0. The word is ``always`` (from the first common length on, which is returned), ``from``
    (a crossing), ``alone`` (the reference could not be measured at ``failed`` and ``own`` could), ``never`` (up to the
    last common length, which is returned), or ``unknown`` where they share no length.
    """
    common = sorted(own.keys() & reference.keys())
    gaps = [math.log(own[length] / reference[length]) for length in common]
    if not common:
        return "unknown", None
    if gaps[0] < 0:
        return "always", float(common[0])
    for number in range(1, len(common)):
        if gaps[number] < 0:
            share = gaps[number - 1] / (gaps[number - 1] - gaps[number])
            return "from", common[number - 1] ** (1 - share) * common[number] ** share
    if failed in own:
        return "alone", float(failed)
    return "never", float(common[-1])


def lacking(records: Sequence[Record]) -> list[str]:
    """For each record why it is not drawn, empty where it is."""
    timed = [record for record in records if record.speed]
    reference = {_beside(record) for record in timed if record.variant_name == REFERENCE}
    others = {_beside(record) for record in timed if record.variant_name != REFERENCE}
    return [_lacks(record, reference, others) for record in records]


def _lacks(record: Record, reference: set[tuple[str, ...]], others: set[tuple[str, ...]]) -> str:
    if not record.speed:
        return "without a step benchmark"
    if _beside(record) not in reference:
        return f"without a {REFERENCE} timed on the same task, protocol and hardware"
    return "" if _beside(record) in others else f"of the {REFERENCE} with none beside it"


def _beside(record: Record) -> tuple[str, ...]:
    return record.key.task, record.key.protocol, record.machine, *record.protocol_modified


def table(records: Sequence[Record]) -> pd.DataFrame:
    """One row per variant, quantity, mode and length."""
    costs = step_costs(records)
    return costs[costs["value"].notna() | (costs["status"] != "ok")]


def draw(data: pd.DataFrame, width: float) -> Iterator[Sheet]:
    """A panel per task and mode, a row per variant: where it starts to be faster and leaner than the transformer.

    Both were measured on the same hardware at the same batch size, seeds by their medians; between measured lengths
    costs are interpolated on logarithmic scales of length and cost. What was so from the first length on stands at the
    left, what was not so up to the last at the right.
    """
    for parts, rows in sheets(data, "hardware"):
        crossings = _crossings(rows)
        if len(crossings):
            yield _sheet(parts, crossings, width)


def _crossings(rows: pd.DataFrame) -> pd.DataFrame:
    """One row per variant, task, batch size, mode and quantity."""
    import pandas as pd

    found = []
    modes = rows["mode"].dtype
    for _, group in rows.groupby([*MACHINE, "mode", "quantity"], dropna=False, observed=True):
        title = f"{panel_title(group, rows)}, {SPOKEN[group['mode'].iloc[0]]}"
        costs = {
            label: dict(zip(own["length"], own["value"], strict=True))
            for label, own in group[group["value"].notna()].groupby("label")
        }
        variants = group.drop_duplicates("label").to_dict("records")
        beside = min((each["label"] for each in variants if each["variant"] == REFERENCE), default=None)
        if beside not in costs:
            continue
        ended = group.loc[(group["label"] == beside) & (group["status"] != "ok"), "length"]
        for first in variants:
            if first["variant"] == REFERENCE or first["label"] not in costs:
                continue
            word, length = first_better(costs[first["label"]], costs[beside], ended.min() if len(ended) else math.inf)
            kept = (*SHEET, *MACHINE, "model", "family", "label", "mode", "quantity")
            found.append(
                {
                    **{name: first[name] for name in kept},
                    "panel": title,
                    "word": word,
                    "length": length,
                    "shortest": min(costs[beside]),
                    "longest": max(costs[beside]),
                }
            )
    return pd.DataFrame(found).astype({"mode": modes} if found else {})


def _sheet(parts: tuple[str, ...], rows: pd.DataFrame, width: float) -> Sheet:
    columns = 1 if width <= COLUMN_INCHES else 2
    labels = list(rows["label"].unique())
    room = table_axes.measure(labels, 0.5 * width / columns)
    look_of = looks_of(rows)
    cells = []
    for _, group in rows.groupby([*MACHINE, "mode"], dropna=False, observed=True):
        keys = _soonest_first(group)
        chunks = list(table_axes.chunks(keys, ROWS_PER_PANEL))
        for number, chunk in enumerate(chunks, start=1):
            title = group["panel"].iloc[0] + (f" ({number} of {len(chunks)})" if len(chunks) > 1 else "")
            painter = partial(_draw, rows=group, keys=chunk, names=room, look_of=look_of)
            cells.append(Cell(title, painter, height=room.edges(chunk)[-1]))
    words = {quantity: f"{WORDS[quantity]} than the {REFERENCE}" for quantity in QUANTITIES}
    legend = [Entry(words[quantity], _mark(quantity, "", BLACK)) for quantity in QUANTITIES]
    if (rows["word"] == "alone").any():
        legend.append(Entry(f"grey inside: the {REFERENCE} could not be run", _mark("memory", "alone", BLACK)))
    return Sheet(parts, pages(cells, width, Frame(columns, left=room.left), legend, heading(parts)), rows)


def _mark(quantity: str, word: str, colour: str) -> dict[str, Any]:
    inside = "#bbbbbb" if word == "alone" else colour if quantity == "time" else "white"
    return {
        "marker": MARKERS[quantity], "color": colour, "markerfacecolor": inside, "markersize": 3.6, "linestyle": "none",
    }  # fmt: skip


def _soonest_first(group: pd.DataFrame) -> list[tuple[str, str]]:
    order = {"always": 0, "from": 1, "alone": 2, "never": 3, "unknown": 4}
    timed = group.assign(late=group["quantity"] != "time", kind=group["word"].map(order))
    first = timed.sort_values(["late", "kind", "length", "label"]).drop_duplicates("label")
    return list(zip(first["model"], first["label"], strict=True))


def _draw(
    ax: Axes,
    rows: pd.DataFrame,
    keys: Sequence[tuple[str, str]],
    names: table_axes.Rows,
    look_of: Mapping[tuple[str, str], Look],
) -> None:
    middles = table_axes.draw(ax, names, keys, look_of)
    shortest, longest = int(rows["shortest"].min()), int(rows["longest"].max())
    ends = {"always": math.log2(shortest) - 1, "never": math.log2(longest) + 1}
    known = rows[rows["label"].isin(middles) & rows["length"].notna()]
    for quantity, own in known.groupby("quantity"):
        entries = own.to_dict("records")
        across = [ends.get(entry["word"], math.log2(entry["length"])) for entry in entries]
        aside = -MARK_INCHES if quantity == "time" else MARK_INCHES
        marks = [_mark(str(quantity), e["word"], look_of[e["model"], e["label"]].colour) for e in entries]
        ax.scatter(
            across, [middles[entry["label"]] + aside for entry in entries], s=marks[0]["markersize"] ** 2,
            marker=marks[0]["marker"], c=[mark["markerfacecolor"] for mark in marks],
            edgecolors=[mark["color"] for mark in marks], linewidths=0.8, zorder=2.5,
        )  # fmt: skip
    steps = range(math.ceil(math.log2(shortest)), math.floor(math.log2(longest)) + 1)
    beyond = f"≤{length_name(shortest)}", f">{length_name(longest)}"
    ax.set_xticks(
        [ends["always"], *steps, ends["never"]], [beyond[0], *(length_name(2**step) for step in steps), beyond[1]]
    )
    for end in ends.values():
        ax.axvspan(end - 0.4, end + 0.4, color="#f2f2f2", linewidth=0, zorder=0)
    between = names.edges(keys)[1:-1]
    ax.hlines(between, 0, 1, transform=ax.get_yaxis_transform(), color="#eeeeee", linewidth=0.4)
    ax.set_xlim(ends["always"] - 0.4, ends["never"] + 0.4)
    ax.set_xlabel("length (tokens)")
