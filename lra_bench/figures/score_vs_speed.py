"""Score over training speed, with peak memory as area around the points."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING

from lra_bench.leaderboard.column import values
from lra_bench.leaderboard.columns import of_runs
from lra_bench.leaderboard.runs import runs_of
from lra_bench.records.schema import Record

from .layout import Sheet
from .scatter import Cost, exclusions_by_cost, scatter_sheets
from .style import SMALL
from .ticks import length_name, logarithmic
from .variants import IDENTITY, PANEL, SHEET, over_seeds, scores

if TYPE_CHECKING:
    import pandas as pd
    from matplotlib.axes import Axes

RUN = "run lra-bench bench with the measure.speed_lengths of the protocol"
MEMORY = ("train_peak_allocated_bytes", "train_peak_resident_growth_bytes")
MEASURED = ["speed_length", "train_batch_size", "train_tokens_per_second", *MEMORY]
TIMED = [*PANEL, "speed_length", "train_batch_size"]


def exclusions(records: Sequence[Record]) -> list[str]:
    """Return for each record the reason why it is not drawn, empty if it is drawn."""
    timed = [run.tokens_per_second(run.train) is not None for run in runs_of(records)]
    return exclusions_by_cost(records, timed, "not timed at the length of most records, or while other programs ran")


def draw(data: pd.DataFrame, width: float) -> Iterator[Sheet]:
    """Draw one panel per task: score over tokens per second of a training step, with the length of each.

    All speeds are measured at the length of most records of the task, protocol and hardware, the longest of several.
    The area around a point is proportional to the peak memory at that length. Machines never share a sheet.
    """
    yield from scatter_sheets(data, COST, width)


def table(records: Sequence[Record]) -> pd.DataFrame:
    """Return one row per variant, aggregated over seeds."""
    import pandas as pd

    variant = [*SHEET, *PANEL, *IDENTITY]
    frame = scores(records)
    speeds = pd.DataFrame([values(run, of_runs(MEASURED)) for run in runs_of(records)])
    timed = pd.concat([frame[variant], speeds], axis=1)
    timed = timed[timed["train_tokens_per_second"].notna()]
    of_speeds = {"train_tokens_per_second": "median", **dict.fromkeys(MEMORY, "first")}
    speed = timed.groupby([*SHEET, *TIMED, *IDENTITY], dropna=False).agg(of_speeds).reset_index()
    data = over_seeds(frame, variant).merge(speed, on=variant)
    data["peak_memory_bytes"] = data[MEMORY[0]].astype("Float64").fillna(data[MEMORY[1]].astype("Float64"))
    return data


def _decorate(ax: Axes, rows: pd.DataFrame) -> None:
    first = rows.iloc[0]
    logarithmic(ax, "x")
    at = f"length {length_name(int(first['speed_length']))}, batch {int(first['train_batch_size'])}"
    ax.set_xlabel(f"tokens/s ({at})", fontsize=SMALL)


COST = Cost(
    "train_tokens_per_second",
    None,
    None,
    less_is_better=False,
    panel=TIMED,
    decorate=_decorate,
    halo="peak_memory_bytes",
)
