"""The shortest length from which a variant is faster, or needs less memory, than the transformer."""

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
MARK_INCHES = 0.022  # distance of marks above and below the middle of a row
MARKERS = {"time": ">", "memory": "o"}
WORDS = {"time": "faster", "memory": "less memory"}
ROWS_PER_PANEL = 50


def first_better(
    own: Mapping[int, float], reference: Mapping[int, float], failed: float = math.inf
) -> tuple[str, float | None]:
    """Return the length from which ``own`` costs less than ``reference``, and how it was determined.

    Between two measured lengths, the crossing is found by linear interpolation of the difference of the log costs over
    log length.

    Args:
        own: The cost of the variant by length.
        reference: The cost of the reference by length.
        failed: The shortest length at which the reference could not be measured.

    Returns:
        A word and a length: ``always`` with the first common length if ``own`` costs less from there on, ``from`` with
        the interpolated crossing, ``alone`` with ``failed`` if only ``own`` was measured there, ``never`` with the last
        common length, or ``unknown`` and None without a common length.
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


def exclusions(records: Sequence[Record]) -> list[str]:
    """Return for each record the reason why it is not drawn, empty if it is drawn."""
    timed = [record for record in records if record.speed]
    reference = {_comparison_group(record) for record in timed if record.variant_name == REFERENCE}
    others = {_comparison_group(record) for record in timed if record.variant_name != REFERENCE}
    return [_lacks(record, reference, others) for record in records]


def _lacks(record: Record, reference: set[tuple[str, ...]], others: set[tuple[str, ...]]) -> str:
    if not record.speed:
        return "without a step benchmark"
    if _comparison_group(record) not in reference:
        return f"without a {REFERENCE} timed on the same task, protocol and hardware"
    return "" if _comparison_group(record) in others else f"of the {REFERENCE} without another model to compare with"


def _comparison_group(record: Record) -> tuple[str, ...]:
    return record.key.task, record.key.protocol, record.machine, *record.protocol_modified


def table(records: Sequence[Record]) -> pd.DataFrame:
    """Return one row per variant, quantity, mode and length."""
    costs = step_costs(records)
    return costs[costs["value"].notna() | (costs["status"] != "ok")]


def draw(data: pd.DataFrame, width: float) -> Iterator[Sheet]:
    """Draw one panel per task and mode with the lengths from which variants are faster or need less memory.

    Each row is a variant compared with the transformer on the same hardware at the same batch size, by medians over
    seeds. Between measured lengths, costs are interpolated on logarithmic scales of length and cost. Variants that cost
    less from the first length on are marked at the left, variants that do not cost less at any length at the right.
    """
    for parts, rows in sheets(data, "hardware"):
        crossings = _crossings(rows)
        if len(crossings):
            yield _sheet(parts, crossings, width)


def _crossings(rows: pd.DataFrame) -> pd.DataFrame:
    """Return one row per variant, task, batch size, mode and quantity."""
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
        base = min((each["label"] for each in variants if each["variant"] == REFERENCE), default=None)
        if base not in costs:
            continue
        ended = group.loc[(group["label"] == base) & (group["status"] != "ok"), "length"]
        for first in variants:
            if first["variant"] == REFERENCE or first["label"] not in costs:
                continue
            word, length = first_better(costs[first["label"]], costs[base], ended.min() if len(ended) else math.inf)
            identifying = (*SHEET, *MACHINE, "model", "family", "label", "mode", "quantity")
            found.append(
                {
                    **{name: first[name] for name in identifying},
                    "panel": title,
                    "word": word,
                    "length": length,
                    "shortest": min(costs[base]),
                    "longest": max(costs[base]),
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
    words = {quantity: f"{WORDS[quantity]} than the {REFERENCE} from this length on" for quantity in QUANTITIES}
    legend = [Entry(words[quantity], _mark(quantity, "", BLACK)) for quantity in QUANTITIES]
    if (rows["word"] == "alone").any():
        legend.append(Entry(f"grey fill: the {REFERENCE} could not be measured", _mark("memory", "alone", BLACK)))
    return Sheet(parts, pages(cells, width, Frame(columns, left=room.left), legend, heading(parts)), rows)


def _mark(quantity: str, word: str, colour: str) -> dict[str, Any]:
    fill = "#bbbbbb" if word == "alone" else colour if quantity == "time" else "white"
    return {
        "marker": MARKERS[quantity], "color": colour, "markerfacecolor": fill, "markersize": 3.6, "linestyle": "none",
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
        offset = -MARK_INCHES if quantity == "time" else MARK_INCHES
        marks = [_mark(str(quantity), e["word"], look_of[e["model"], e["label"]].colour) for e in entries]
        ax.scatter(
            across, [middles[entry["label"]] + offset for entry in entries], s=marks[0]["markersize"] ** 2,
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
