"""Score over the growth exponent of the time of a training step."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING

from lra_bench.records.schema import Record

from .layout import Sheet
from .scatter import Cost, exclusions_by_cost, scatter_sheets
from .style import SMALL
from .ticks import length_name
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
    """Draw one panel per task: score over the exponent a of N^a in training, with the lengths of both.

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
    lengths = (
        frame.assign(**_lengths(records))
        .groupby(key, dropna=False)
        .agg(growth_from=("growth_from", "min"), growth_to=("growth_to", "max"))
    )
    return over_seeds(frame.drop(columns=list(FITTED)), key).merge(medians, on=key).merge(lengths, on=key)


def _lengths(records: Sequence[Record]) -> dict[str, list[float]]:
    """Return the shortest and the longest length of the fit of each record, NaN without a fit."""
    own = [record.growth["train"]["lengths"] if "train" in record.growth else [] for record in records]
    return {
        "growth_from": [min(lengths, default=math.nan) for lengths in own],
        "growth_to": [max(lengths, default=math.nan) for lengths in own],
    }


def _fit(record: Record) -> tuple[float | None, ...]:
    growth = record.growth.get("train")
    return (None,) * len(FITTED) if growth is None else tuple(growth[name] for name in FITTED)  # type: ignore[literal-required]


def _decorate(ax: Axes, rows: pd.DataFrame) -> None:
    first, last = (length_name(int(end)) for end in (rows["growth_from"].min(), rows["growth_to"].max()))
    ax.set_xlabel(f"a of training time N^a, {first}–{last}", fontsize=SMALL)


COST = Cost("time_exponent", "time_low", "time_high", less_is_better=True, panel=PANEL, decorate=_decorate)
