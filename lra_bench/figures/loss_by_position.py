"""Loss of a language model over the position in its context, at the training length and at longer contexts.

Lines are means over seeds, bands the range of the seeds. Points are drawn at the last token of their bin. The dashed
line is the score of the strongest floor on all scored tokens; floors by position are not recorded. The vertical line is
the training length: a curve that rises beyond it means that longer contexts make predictions worse.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from lra_bench.measurements.lengths import ratio_name
from lra_bench.records.schema import Record

from .curves import Curves, limits
from .legend import Entry, draw_floor, floor_entry, seed_band
from .palette import GREY
from .style import lengths_below
from .variants import IDENTITY, PANEL, SHEET, band, extent, panel_title, placed, units

if TYPE_CHECKING:
    import pandas as pd
    from matplotlib.axes import Axes

RUN = "run lra-bench bench task=enwik8, which evaluates each model at the contexts of measure.extrapolation_ratios"
BIN = [*SHEET, *PANEL, "train_length", *IDENTITY, "knob", "ratio", "length", "first", "last"]


def exclusions(records: Sequence[Record]) -> list[str]:
    """Return for each record the reason why it is not drawn, empty if it is drawn."""
    return ["" if _bins(record) else "without a loss by position" for record in records]


def _bins(record: Record) -> list[dict[str, object]]:
    """Return the losses by position of a finished record, with the strongest floor on the same tokens."""
    if record.status != "ok" or record.extrapolation is None:
        return []
    length = record.extrapolation["train_length"]
    floors = {
        point["ratio"]: {"floor": point["floor"], "floor_name": point["floor_name"]}
        for point in record.extrapolation["points"]
        if point["floor"] is not None
    }
    unknown = {"floor": None, "floor_name": None}
    return [
        {"train_length": length, **floors.get(each["ratio"], unknown), **each}
        for each in record.extrapolation["by_position"]
    ]


def table(records: Sequence[Record]) -> pd.DataFrame:
    """Return one row per variant, knob, context length and bin."""
    bins = placed(records, [_bins(record) for record in records]).astype({"floor": float})
    data = band(bins, BIN, "bits_per_character", n=("n", "sum"))
    return data.assign(context=data["ratio"].map(lambda ratio: f"context {ratio_name(ratio).replace('x', '×')}"))


def _title(rows: pd.DataFrame, sheet: pd.DataFrame) -> str:
    first = rows.iloc[0]
    return " · ".join(filter(None, (panel_title(rows, sheet), first["label"], first["knob"])))


def _decorate(ax: Axes, rows: pd.DataFrame) -> None:
    ax.axvline(rows["train_length"].iloc[0], zorder=1, **TRAINED)
    lengths_below(ax, rows["last"].unique())
    ax.locator_params(axis="y", nbins=6, steps=[1, 2, 5, 10])
    draw_floor(ax, rows.drop_duplicates("ratio"), 1.0)
    limits(ax, *extent(rows, "low", "high", "floor"))
    ax.set_xlabel("position in the context (tokens)")
    ax.set_ylabel(units("bits_per_character")[1])


def _legend(rows: pd.DataFrame) -> list[Entry]:
    lengths = ", ".join(f"{length:,}" for length in sorted(rows["train_length"].unique()))
    return [
        *floor_entry(rows, "mean over positions"),
        *seed_band(rows),
        Entry(f"training length ({lengths})", {**TRAINED, "linestyle": "-"}),
    ]


TRAINED: dict[str, Any] = {"color": GREY, "linewidth": 0.8}
KIND = Curves(
    panel=[*PANEL, "train_length", "label", "knob"], x="last", y="bits_per_character",
    bars=False, title=_title, decorate=_decorate, lines=("ratio", "context"), columns=2,
    legend=_legend,
)  # fmt: skip
draw = KIND.draw
