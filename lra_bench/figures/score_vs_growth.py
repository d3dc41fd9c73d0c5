"""Score over the growth exponent of the time of a training step."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING

from lra_bench.records.schema import Record

from .layout import Sheet
from .scatter import Cost, exclusions_by_cost, scatter_sheets
from .style import SMALL
from .variants import IDENTITY, PANEL, SHEET, over_seeds, scores

if TYPE_CHECKING:
    import pandas as pd
    from matplotlib.axes import Axes

RUN = "run lra-bench bench with three or more lengths in measure.speed_lengths, which a growth exponent needs"
FITTED = ("time_exponent", "time_low", "time_high")


def exclusions(records: Sequence[Record]) -> list[str]:
    """Return for each record the reason why it is not drawn, empty if it is drawn."""
    return exclusions_by_cost(records, [_fit(record)[0] is not None for record in records], "without a growth exponent")


def draw(data: pd.DataFrame, width: float) -> Iterator[Sheet]:
    """Draw one panel per task: score over the exponent a of N^a in training, both with 95 % confidence intervals.

    Exponents and the ends of their intervals are medians over seeds.
    """
    yield from scatter_sheets(data, COST, width)


def table(records: Sequence[Record]) -> pd.DataFrame:
    """Return one row per variant, aggregated over seeds."""
    import pandas as pd

    key = [*SHEET, *PANEL, *IDENTITY]
    fits = pd.DataFrame([_fit(record) for record in records], columns=list(FITTED), dtype=float)
    frame = pd.concat([scores(records), fits], axis=1)
    medians = frame.groupby(key, dropna=False)[list(FITTED)].median().reset_index()
    return over_seeds(frame.drop(columns=list(FITTED)), key).merge(medians, on=key)


def _fit(record: Record) -> tuple[float | None, ...]:
    growth = record.growth.get("train")
    return (None,) * len(FITTED) if growth is None else tuple(growth[name] for name in FITTED)  # type: ignore[literal-required]


def _decorate(ax: Axes, rows: pd.DataFrame) -> None:
    ax.set_xlabel("exponent a of training time N^a", fontsize=SMALL)


COST = Cost("time_exponent", "time_low", "time_high", less_is_better=True, panel=PANEL, decorate=_decorate)
