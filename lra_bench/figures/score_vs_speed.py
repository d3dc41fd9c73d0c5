"""Score over training speed, with peak memory as area around the points.

Speeds are tokens per second of a training step at the timed length that is nearest to that of the score. The area
around a point is proportional to the peak memory at that length. The dashed line is the strongest floor.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from lra_bench.records.schema import Record
from lra_bench.tables.column import values
from lra_bench.tables.columns import of_runs
from lra_bench.tables.runs import Run, runs_of
from lra_bench.tables.seeds import over_seeds

from .scatter import Cost, exclusions_by_cost
from .style import SMALL, length_name, logarithmic
from .variants import IDENTITY, PANEL, SHEET, scores

if TYPE_CHECKING:
    import pandas as pd
    from matplotlib.axes import Axes

RUN = "run lra-bench bench with the measure.speed_lengths of the protocol"
MEMORY = ("train_peak_allocated_bytes", "train_peak_resident_growth_bytes")
FARTHEST = 10
"""Largest ratio of the timed length and that of the score."""
MEASURED = ["speed_length", "train_batch_size", "train_tokens_per_second", *MEMORY]
TIMED = [*PANEL, "speed_length", "train_batch_size"]


def exclusions(records: Sequence[Record]) -> list[str]:
    """Return for each record the reason why it is not drawn, empty if it is drawn."""
    timed = [run.tokens_per_second(run.train) is not None for run in _runs(records)]
    return exclusions_by_cost(records, timed, "not timed near the length of the score, or while other programs ran")


def table(records: Sequence[Record]) -> pd.DataFrame:
    """Return one row per variant, aggregated over seeds."""
    import pandas as pd

    variant = [*SHEET, *PANEL, *IDENTITY]
    frame = scores(records)
    speeds = pd.DataFrame([values(run, of_runs(MEASURED)) for run in _runs(records)])
    timed = pd.concat([frame[variant], speeds], axis=1)
    timed = timed[timed["train_tokens_per_second"].notna()]
    of_speeds = {"train_tokens_per_second": "median", **dict.fromkeys(MEMORY, "first")}
    speed = timed.groupby([*SHEET, *TIMED, *IDENTITY], dropna=False).agg(of_speeds).reset_index()
    data = over_seeds(frame, variant).merge(speed, on=variant)
    data["peak_memory_bytes"] = data[MEMORY[0]].astype("Float64").fillna(data[MEMORY[1]].astype("Float64"))
    return data


def _runs(records: Sequence[Record]) -> list[Run]:
    """Return the records with the timed length that is nearest to that of the score, at most ``FARTHEST`` times it.

    A record whose score has no known length has the length of most records.
    """
    return [
        run if record.extrapolation is None else Run(record, _nearest(record, record.extrapolation["train_length"]))
        for record, run in zip(records, runs_of(records), strict=True)
    ]


def _nearest(record: Record, scored: int) -> int | None:
    apart = {
        point["length"]: max(point["length"] / scored, scored / point["length"])
        for point in record.speed
        if point["mode"] == "train" and point["status"] == "ok"
    }
    near = [length for length in apart if apart[length] <= FARTHEST]
    return min(near, key=lambda length: (apart[length], length), default=None)


def _decorate(ax: Axes, rows: pd.DataFrame) -> None:
    first = rows.iloc[0]
    logarithmic(ax, "x")
    at = f"length {length_name(int(first['speed_length']))}, batch {int(first['train_batch_size'])}"
    ax.set_xlabel(f"tokens/s ({at})", fontsize=SMALL)


COST = Cost("train_tokens_per_second", None, None, False, TIMED, _decorate, halo="peak_memory_bytes")
draw = COST.draw
