"""Score over the bytes of the inference state: the memory that recall costs."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING

from lra_bench.leaderboard.runs import Run
from lra_bench.records.schema import Record

from .layout import Sheet
from .scatter import Cost, exclusions_by_cost, scatter_sheets
from .style import SMALL
from .ticks import length_name, logarithmic
from .variants import IDENTITY, PANEL, SHEET, over_seeds, scores

if TYPE_CHECKING:
    import pandas as pd
    from matplotlib.axes import Axes

RUN = "run lra-bench bench on a causal task, or with backbone.causal=true"
MEASURED = ("state_bytes", "state_length")


def exclusions(records: Sequence[Record]) -> list[str]:
    """Return for each record the reason why it is not drawn, empty if it is drawn."""
    known = [Run(record).state_bytes is not None for record in records]
    return exclusions_by_cost(records, known, "without an inference state")


def draw(data: pd.DataFrame, width: float) -> Iterator[Sheet]:
    """Draw one panel per task: score over the bytes of the inference state after a row of the training length."""
    yield from scatter_sheets(data, COST, width)


def table(records: Sequence[Record]) -> pd.DataFrame:
    """Return one row per variant, aggregated over seeds. All seeds of a variant have the same state."""
    import pandas as pd

    states = [
        (Run(record).state_bytes, record.state["train_length"] if record.state is not None else None)
        for record in records
    ]
    frame = pd.concat([scores(records), pd.DataFrame(states, columns=list(MEASURED), dtype=float)], axis=1)
    return over_seeds(frame, [*SHEET, *PANEL, *IDENTITY], first=MEASURED)


def _decorate(ax: Axes, rows: pd.DataFrame) -> None:
    logarithmic(ax, "x")
    ax.set_xlabel(f"state in bytes, length {length_name(int(rows['state_length'].iloc[0]))}", fontsize=SMALL)


COST = Cost("state_bytes", None, None, less_is_better=True, panel=[*PANEL, "state_length"], decorate=_decorate)
