"""Bits per character over the memory length of language models with memory, and the state that the memory needs.

The state is the bytes that the model passes on per document. Lines are means over seeds, bands the range of the seeds,
and the dashed line is the strongest floor. A length of 0 is drawn at 1.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from lra_bench.records.schema import Record

from .curves import Curves, limits
from .legend import draw_floor, floor_entry, seed_band
from .style import SMALL, logarithmic
from .variants import IDENTITY, PANEL, SHEET, band, extent, floor_of, panel_title, placed, units

if TYPE_CHECKING:
    import pandas as pd
    from matplotlib.axes import Axes

RUN = "run lra-bench bench task=enwik8 model=transformer_xl, which tests the lengths of measure.memory_lengths"


def exclusions(records: Sequence[Record]) -> list[str]:
    """Return for each record the reason why it is not drawn, empty if it is drawn."""
    return ["" if record.status == "ok" and record.memory else "without scores by memory length" for record in records]


def table(records: Sequence[Record]) -> pd.DataFrame:
    """Return one row per variant, memory length and quantity (``bits per character`` or ``state bytes``)."""
    import pandas as pd

    points = [
        [{"trained_length": memory["trained_length"], **floor_of(record), **point} for point in memory["points"]]
        for record in records
        if (memory := record.memory) is not None
    ]
    frame = placed(records, points).astype({"floor": float})
    by = [*SHEET, *PANEL, *IDENTITY, "trained_length", "memory_length"]
    parts = [
        band(frame.assign(value=frame[column]), by, "value", n=("n", "sum")).assign(quantity=quantity)
        for quantity, column in (("bits per character", "score"), ("state bytes", "state_bytes"))
    ]
    data = pd.concat(parts, ignore_index=True)
    floor = data["floor"].where(data["quantity"] == "bits per character")
    return data.assign(drawn_length=data["memory_length"].clip(lower=1), floor=floor)


def _title(rows: pd.DataFrame, sheet: pd.DataFrame) -> str:
    return f"{panel_title(rows, sheet)} · {rows['quantity'].iloc[0]}"


def _decorate(ax: Axes, rows: pd.DataFrame) -> None:
    lengths = sorted(rows["memory_length"].unique())
    ax.set_xscale("log", base=2)
    ax.set_xticks([max(length, 1) for length in lengths], [f"{length:,}" for length in lengths])
    ax.minorticks_off()
    ax.set_xlabel("memory length in testing (tokens or slots)", fontsize=SMALL)
    if rows["quantity"].iloc[0] == "state bytes":
        low, high = extent(rows, "low", "high")
        ax.set_ylim(low / 1.3, high * 1.3)
        logarithmic(ax, "y")
        return
    draw_floor(ax, rows, 1.0)
    limits(ax, *extent(rows, "low", "high", "floor"))
    ax.set_ylabel(units("bits_per_character")[1])


KIND = Curves(
    panel=[*PANEL, "quantity"], x="drawn_length", y="value", bars=False, title=_title,
    decorate=_decorate, columns=2,
    legend=lambda rows: [*floor_entry(rows), *seed_band(rows)],
)  # fmt: skip
draw = KIND.draw
