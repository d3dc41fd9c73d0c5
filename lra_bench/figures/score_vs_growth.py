"""Score over the growth exponent of the time of a training step, from a profile of the systems.

The labels of the axes contain the length of the score and the range of lengths of the exponent. The dashed line is the
strongest floor.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from lra_bench.records.schema import Record
from lra_bench.tables.seeds import over_seeds

from .scatter import Cost, exclusions_by_cost
from .style import SMALL, length_name
from .variants import IDENTITY, PANEL, SHEET, scores

if TYPE_CHECKING:
    import pandas as pd
    from matplotlib.axes import Axes

RUN = "run lra-bench profile with these models and three or more lengths in measure.speed_lengths"
FITTED = ("time_exponent", "time_low", "time_high", "growth_from", "growth_to")


def exclusions(records: Sequence[Record]) -> list[str]:
    """Return for each record the reason why it is not drawn, empty if it is drawn."""
    known = [_fit(record)[0] is not None for record in records]
    return exclusions_by_cost(records, known, "without a growth exponent from a profile")


def table(records: Sequence[Record]) -> pd.DataFrame:
    """Return one row per variant, aggregated over seeds. All seeds of a variant have the same costs."""
    import pandas as pd

    fits = pd.DataFrame([_fit(record) for record in records], columns=list(FITTED), dtype=float)
    frame = pd.concat([scores(records), fits], axis=1)
    return over_seeds(frame, [*SHEET, *PANEL, *IDENTITY], dict.fromkeys(FITTED, "first"))


def _fit(record: Record) -> tuple[float | None, ...]:
    """Return the values of ``FITTED``, None without a growth exponent."""
    if (costs := record.profiled) is None or costs["time_exponent"] is None:
        return (None,) * len(FITTED)
    lengths = costs["growth_lengths"]
    return costs["time_exponent"], costs["time_low"], costs["time_high"], min(lengths), max(lengths)


def _decorate(ax: Axes, rows: pd.DataFrame) -> None:
    first, last = (length_name(int(end)) for end in (rows["growth_from"].min(), rows["growth_to"].max()))
    ax.set_xlabel(f"a of training time N^a, {first}–{last}", fontsize=SMALL)


COST = Cost("time_exponent", "time_low", "time_high", less_is_better=True, panel=PANEL, decorate=_decorate)
draw = COST.draw
