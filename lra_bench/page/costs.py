"""Costs that the page filters, sorts and draws: those of training, of the model, and of inference."""

from __future__ import annotations

from collections.abc import Sequence

from lra_bench.measurement import Column, Display
from lra_bench.tables.cell import Cell, figure
from lra_bench.tables.column import Context, Row
from lra_bench.tables.formatting import at_length

from .rows import Json

FACTORS = {"flops": 1e12, "seconds": 1.0, "parameters": 1.0, "state": 1e3, "milliseconds": 1.0, "step": 1.0}
"""Keys of all costs, with the units in which the page shows them."""


def columns(rows: Sequence[Row]) -> list[Column]:
    """Return the columns of the costs of the rows of one task, which ``with_costs`` has added."""
    lengths = {row["inference_length"] for row in rows if row["milliseconds"] is not None}
    at = at_length(lengths.pop()) if len(lengths) == 1 else ""
    return [
        _column("flops", "training TFLOP", "10¹² floating point operations of the training run, forward and backward"),
        _column(
            "seconds",
            "training seconds",
            "time spent in training steps; empty if other programs ran at the same time, or if this is unknown",
            machine=True,
        ),
        _column("parameters", "parameters", "trainable parameters of the body that one token uses"),
        _column(
            "state",
            "state, kB",
            "all tensors that a causal model keeps to read one more token after the training length, of one row in "
            "float32; empty if the model is bidirectional on the task",
        ),
        _column(
            "milliseconds",
            f"inference ms {at}".strip(),
            "time of a forward pass per sequence, at the length in the heading: from the stored profile if there is "
            "one, in which systems were timed alternately, otherwise from the step benchmark",
            machine=True,
        ),
        _column(
            "step",
            "step time, × transformer",
            "time of a training step divided by the Transformer's, from a profile in which they were timed alternately",
            machine=True,
        ),
    ]


def with_costs(rows: Sequence[Row]) -> list[Row]:
    """Return the rows of one task with the costs of ``FACTORS`` in the units of the page, None if unknown."""
    profiled = any(row["profile_inference_seconds"] is not None for row in rows)
    return [{**row, **_costs(row, profiled)} for row in rows]


def _costs(row: Row, profiled: bool) -> Json:
    length, seconds = row["speed_length"], None
    if profiled:
        length, seconds = row["profile_length"], row["profile_inference_seconds"]
    elif (speed := row["inference_tokens_per_second"]) is not None and length is not None:
        seconds = length / speed
    found = {
        "flops": row["train_flops"],
        "seconds": row["train_seconds_alone"],
        "parameters": row["parameters_body_active"],
        "state": row["state_bytes"],
        "milliseconds": None if seconds is None else 1e3 * seconds,
        "step": row["relative_speed"] and 1 / row["relative_speed"],
    }
    known = {name: None if value is None else value / FACTORS[name] for name, value in found.items()}
    return {**known, "inference_length": length}


def _column(name: str, heading: str, help: str, machine: bool = False) -> Column:
    def cell(row: Row, context: Context) -> Cell:
        return figure(row[name], lambda value: f"{value:,.0f}" if value >= 100 else f"{value:.3g}")

    return Column(name=name, help=help, display=Display(heading, cell=cell, first="ascending", machine=machine))
