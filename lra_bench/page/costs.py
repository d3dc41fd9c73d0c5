"""Costs that the page limits, sorts and draws: those of training, of the model, and of inference."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from lra_bench.measurement import Column, Display
from lra_bench.tables.cell import Cell, figure
from lra_bench.tables.column import Context, Row
from lra_bench.tables.formatting import at_length

INSTEAD_OF = ("parameters_body_active", "state_bytes")
"""Columns of tables of text that are costs on the page."""


def columns(rows: Sequence[Row]) -> list[Column]:
    """Return the columns of the costs of the rows of one task."""
    profiled = any(row["profile_inference_seconds"] is not None for row in rows)
    length = "profile_length" if profiled else "speed_length"
    lengths = {row[length] for row in rows if row[length] is not None}
    at = at_length(lengths.pop()) if len(lengths) == 1 else ""

    def seconds(row: Row) -> float | None:
        """Return the time of a forward pass per sequence: of the profile, or without one of the step benchmark."""
        speed = row["inference_tokens_per_second"]
        if profiled or speed is None or row["speed_length"] is None:
            return row["profile_inference_seconds"] if profiled else None
        return float(row["speed_length"] / speed)

    return [
        _cost(
            "flops",
            "training TFLOP",
            "10¹² floating point operations of the training run, forward and backward",
            lambda row: row["train_flops"],
            factor=1e12,
        ),
        _cost(
            "seconds",
            "training seconds",
            "time spent in training steps; empty if other programs ran at the same time, or if this is unknown",
            lambda row: row["train_seconds_alone"],
            machine=True,
        ),
        _cost(
            "parameters",
            "parameters",
            "trainable parameters of the body that one token uses",
            lambda row: row["parameters_body_active"],
        ),
        _cost(
            "state",
            "state, kB",
            "all tensors that a causal model keeps to read one more token after the training length, of one row in "
            "float32; empty if the model is bidirectional on the task",
            lambda row: row["state_bytes"],
            factor=1e3,
        ),
        _cost(
            "milliseconds",
            f"inference ms {at}".strip(),
            "time of a forward pass per sequence, at the length in the heading: from the stored profile if there is "
            "one, in which systems were timed alternately, otherwise from the step benchmark",
            seconds,
            factor=1e-3,
            machine=True,
        ),
        _cost(
            "step",
            "step time, × transformer",
            "time of a training step divided by the Transformer's, from a profile in which they were timed alternately",
            lambda row: row["relative_speed"] and 1 / row["relative_speed"],
            machine=True,
        ),
    ]


def _cost(
    name: str,
    heading: str,
    help: str,
    value: Callable[[Row], float | None],
    factor: float = 1.0,
    machine: bool = False,
) -> Column:
    """Return the column of a cost in the unit of its heading, which is ``factor`` times that of ``value``."""

    def cell(row: Row, context: Context) -> Cell:
        known = value(row)
        return figure(
            None if known is None else known / factor, lambda cost: f"{cost:,.0f}" if cost >= 100 else f"{cost:.3g}"
        )

    return Column(name=name, help=help, display=Display(heading, cell=cell, first="ascending", machine=machine))
