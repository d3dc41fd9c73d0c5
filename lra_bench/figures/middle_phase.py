"""Success rate in key to door over the length of the middle phase.

Vertical lines are the middle phases of the training, the dashed line is the floor. Points at which no seed exceeds the
floor are grey.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from lra_bench.records.schema import Record

from .curves import Curves
from .extrapolation import averaged, decorate_lengths, scored_points
from .variants import IDENTITY, PANEL, SHEET, panel_title

if TYPE_CHECKING:
    import pandas as pd
    from matplotlib.axes import Axes

RUN = "run lra-bench bench task=key_to_door,key_to_door_memory"
TOKENS_PER_STEP = {"key_to_door": 3, "key_to_door_memory": 3, "delayed_recall": 1}
"""Tokens of a step in the tasks that the figure shows."""


def exclusions(records: Sequence[Record]) -> list[str]:
    """Return for each record the reason why it is not drawn, empty if it is drawn."""
    return [
        "of tasks without a middle phase"
        if record.key.task not in TOKENS_PER_STEP or _phases(record) is None
        else ""
        if any(not knob for _, knob, _ in scored_points(record))
        else "without a score at any length"
        for record in records
    ]


def table(records: Sequence[Record]) -> pd.DataFrame:
    """Return one row per variant and length, averaged over seeds; ``middle`` is the number of steps between the rooms.

    ``trained`` is that number in training.
    """
    data = averaged(records)
    data = data[data["knob"] == ""].drop(columns="knob")
    steps = {(record.key.task, record.key.hash): _phases(record) for record in records}
    trained = [steps[pair][1] for pair in zip(data["task"], data["hash"], strict=True)]  # type: ignore[index]
    longer = (data["length"] - data["train_length"]) // data["task"].map(TOKENS_PER_STEP)
    data = data.assign(trained=trained, middle=longer + trained)
    return data.sort_values([*SHEET, *PANEL, *IDENTITY, "middle"]).reset_index(drop=True)


def _phases(record: Record) -> list[int] | None:
    """Return the numbers of steps of the three phases of a record, None if it has none."""
    phases = (record.config.get("task") or {}).get("phases")
    known = isinstance(phases, list) and len(phases) == 3 and all(isinstance(steps, int) for steps in phases)
    return phases if known else None


def _decorate(ax: Axes, rows: pd.DataFrame) -> None:
    for steps in rows["trained"].unique():
        ax.axvline(steps, color="0.8", linewidth=0.8, zorder=1, gid="trained")
    decorate_lengths(ax, rows, "middle", "middle phase (steps)")


KIND = Curves(
    panel=PANEL, x="middle", y="score", bars=True, aside=0.06, title=panel_title,
    decorate=_decorate, columns=2,
)  # fmt: skip
draw = KIND.draw
