"""Validation score over training steps.

Lines are means over seeds, in a band of the range over seeds. The dashed line is the strongest floor, and the region of
scores that are not better is shaded. A curve is grey if no seed is better than the floor at any evaluation.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Any

from lra_bench.records import tables
from lra_bench.records.schema import Record

from .curves import Curves, limits
from .legend import BLOCK, Entry, floor_entry, floor_line, floor_notes, seed_band
from .palette import AT_FLOOR, BELOW_FLOOR
from .variants import IDENTITY, PANEL, SHEET, band, extent, panel_title, placed, places, units

if TYPE_CHECKING:
    import pandas as pd
    from matplotlib.axes import Axes

RUN = "run lra-bench bench, which writes learning curves next to each record"
CELL = [*SHEET, *PANEL, *IDENTITY]


def exclusions(records: Sequence[Record]) -> list[str]:
    """Return for each record the reason why it is not drawn, empty if it is drawn."""
    return ["" if "curves" in record.artifacts and record.metric else "without learning curves" for record in records]


def table(records: Sequence[Record]) -> pd.DataFrame:
    """Return one row per variant and validated step.

    ``floor`` is the strongest floor on ``floor_split``: the validation split, or the test split if the record does not
    contain the floor on the validation split.
    """
    rows = [[*_points(record)] for record in records]
    if not any(rows):
        return places(records)[:0]
    points = placed(records, rows).astype({"floor": float})
    return band(points, [*CELL, "metric", "step"], "score", floor_split=("floor_split", "first"))


def _points(record: Record) -> Iterator[dict[str, Any]]:
    if (curve := tables.validation_curve(record)) is None:
        return
    name, floor, split = _floor(record)
    constant = {"metric": record.metric, "floor": floor, "floor_name": name, "floor_split": split}
    for step, score in zip(*curve, strict=True):
        yield {**constant, "step": step, "score": score}


def _floor(record: Record) -> tuple[str | None, float, str]:
    """Return name, score and split of the strongest floor."""
    training = record.training or {}
    if (score := training.get("validation_floor")) is not None:
        return training.get("validation_floor_name"), score, "validation"
    name, score = record.best_floor() or (None, math.nan)
    return name, score, "test"


def _drawn_floors(rows: pd.DataFrame) -> pd.DataFrame:
    """Return the rows whose floors are drawn: in each panel those on the validation split, if there are any."""
    known = rows.dropna(subset=["floor"])
    of_validation = known["floor_split"] == "validation"
    any_of_panel = of_validation.groupby([known[name] for name in PANEL], dropna=False).transform("any")
    return known[of_validation | ~any_of_panel]


def _is_at_floor(own: pd.DataFrame) -> bool:
    """Return whether no score of a curve is better than its floor, of any seed; False if the floor is unknown."""
    floor = own["floor"].iloc[0]
    if own["metric"].iloc[0] == "bits_per_character":
        return bool(own["low"].min() >= floor)
    return bool(own["high"].max() <= floor)


def _legend(rows: pd.DataFrame) -> Iterator[Entry]:
    """Yield the entries of the floor, of the shaded region, of grey curves and of bands."""
    floors = _drawn_floors(rows)
    if len(floors):
        splits = sorted(floors["floor_split"].unique(), reverse=True)
        yield from floor_entry(floors, f"on the {' or '.join(splits)} split")
        yield Entry("shaded: scores that are not better than the floor", {"color": BELOW_FLOOR, **BLOCK})
    if any(_is_at_floor(own) for _, own in rows.groupby([*PANEL, "label"], dropna=False)):
        yield Entry("grey curves: never better than the floor, in any seed", {"color": AT_FLOOR})
    yield from seed_band(rows)


def _decorate(ax: Axes, rows: pd.DataFrame) -> None:
    factor, name = units(rows["metric"].iloc[0])
    ax.set_xlim(0, 1.03 * rows["step"].max())
    ax.locator_params(axis="y", nbins=6, steps=[1, 2, 5, 10])
    limits(ax, *(factor * end for end in extent(rows, "low", "high", "floor")))
    if len(floors := _drawn_floors(rows)):
        floor = factor * floors["floor"].mean()
        worst = ax.get_ylim()[rows["metric"].iloc[0] == "bits_per_character"]
        ax.axhspan(floor, worst, color=BELOW_FLOOR, linewidth=0, zorder=0.5, gid="below floor")
        ax.axhline(floor, zorder=2, gid="floor", **floor_line())
    ax.locator_params(axis="x", nbins=4)
    ax.set_xlabel("training step")
    ax.set_ylabel(f"validation {name}")


KIND = Curves(
    panel=PANEL, x="step", y="score", bars=False, title=panel_title, decorate=_decorate,
    legend=lambda rows: list(_legend(rows)), at_floor=_is_at_floor,
    notes=lambda rows: floor_notes(_drawn_floors(rows)),
)  # fmt: skip
draw = KIND.draw
