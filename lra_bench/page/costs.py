"""Costs that the page limits, sorts and draws: those of training, of the model, and of inference."""

from __future__ import annotations

import operator
from collections.abc import Callable, Mapping, Sequence

from lra_bench.contracts.measurement import Column, Display
from lra_bench.figures.costs import COSTS
from lra_bench.tables.cell import Cell, figure
from lra_bench.tables.column import Context, Row
from lra_bench.tables.formatting import at_length

INSTEAD_OF = ("parameters_body_active", "state_bytes")  # columns of tables of text that are costs on the page
HELP: Mapping[str, str] = {
    "flops": "10¹² floating point operations of the training run, forward and backward",
    "seconds": "time spent in training steps; empty if other programs ran at the same time, or if this is unknown",
    "parameters": "trainable parameters of the body that one token uses",
    "state": "all tensors that a causal model keeps to read one more token after the training length, of one row in "
    "float32; empty if the model is bidirectional on the task",
    "milliseconds": "time of a forward pass per sequence, at the length in the heading: from the stored profile if "
    "there is one, in which systems were timed alternately, otherwise from the step benchmark",
    "step": "time of a training step divided by the Transformer's, from a profile in which they were timed alternately",
}
OF_MACHINE = ("seconds", "milliseconds", "step")


def columns(rows: Sequence[Row]) -> list[Column]:
    """Return the columns of the costs of the rows of one task."""
    profiled = any(row["profile_inference_seconds"] is not None for row in rows)
    lengths = {row["profile_length" if profiled else "speed_length"] for row in rows} - {None}
    at = at_length(lengths.pop()) if len(lengths) == 1 else ""

    def seconds(row: Row) -> float | None:
        """Return the time of a forward pass per sequence: of the profile, or without one of the step benchmark."""
        speed = row["inference_tokens_per_second"]
        if profiled or speed is None or row["speed_length"] is None:
            return row["profile_inference_seconds"] if profiled else None
        return float(row["speed_length"] / speed)

    def column(name: str, heading: str, value: Callable[[Row], float | None], unit: float = 1.0) -> Column:
        def cell(row: Row, context: Context) -> Cell:
            known = value(row)
            cost = None if known is None else known / unit
            return figure(cost, lambda cost: f"{cost:,.0f}" if cost >= 100 else f"{cost:.3g}")

        display = Display(heading, cell=cell, first="ascending", machine=name in OF_MACHINE)
        return Column(name=name, help=HELP[name], display=display)

    found = [
        column(name, f"{heading} {at}".strip(), seconds, unit)
        if name == "milliseconds"
        else column(name, heading, operator.itemgetter(source), unit)
        for name, (source, heading, unit) in COSTS.items()
    ]
    step = column("step", "step time, × transformer", lambda row: row["relative_speed"] and 1 / row["relative_speed"])
    return [*found, step]
