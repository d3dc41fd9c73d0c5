"""Score over the exponent with which a training step's time grows in the length."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING

from lra_bench.records.schema import Record

from .layout import Sheet
from .scatter import Cost, lacking_cost, scatter_sheets
from .style import SMALL
from .variants import IDENTITY, PANEL, SHEET, over_seeds, scores

if TYPE_CHECKING:
    import pandas as pd
    from matplotlib.axes import Axes

RUN = "run lra-bench bench with two lengths or more in measure.speed_lengths"
FITTED = ("time_exponent", "time_low", "time_high")


def lacking(records: Sequence[Record]) -> list[str]:
    """For each record why it is not drawn, empty where it is."""
    return lacking_cost(records, [_fit(record)[0] is not None for record in records], "without an exponent")


def draw(data: pd.DataFrame, width: float) -> Iterator[Sheet]:
    """A panel per task: the score over the exponent a of N^a in training, each with its 95 % interval.

    Exponents of several seeds are drawn by their medians, and so are the ends of their intervals.
    """
    yield from scatter_sheets(data, COST, width)


def table(records: Sequence[Record]) -> pd.DataFrame:
    """One row per variant, seeds together."""
    import pandas as pd

    key = [*SHEET, *PANEL, *IDENTITY]
    fits = pd.DataFrame([_fit(record) for record in records], columns=list(FITTED), dtype=float)
    frame = pd.concat([scores(records), fits], axis=1)
    medians = frame.groupby(key, dropna=False)[list(FITTED)].median().reset_index()
    return over_seeds(frame.drop(columns=list(FITTED)), key).merge(medians, on=key)


def _fit(record: Record) -> tuple[float | None, ...]:
    growth = record.growth.get("train")
    return (None,) * len(FITTED) if growth is None else tuple(growth[name] for name in FITTED)  # type: ignore[literal-required]


def _furnish(ax: Axes, rows: pd.DataFrame) -> None:
    ax.set_xlabel("exponent a of training time N^a", fontsize=SMALL)


COST = Cost("time_exponent", "time_low", "time_high", less_is_better=True, panel=PANEL, furnish=_furnish)
