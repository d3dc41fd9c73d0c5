"""What measurements receive: the trained model of a cell with its task, and how to run it."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from lra_bench.config.schema import CellConfig
    from lra_bench.contracts import Task, TaskScore
    from lra_bench.data.batches import Rows
    from lra_bench.runtime.hardware import Hardware
    from lra_bench.training.evaluation import Evaluation

    from .extrapolation import PointKey
    from .points import Attempt


@dataclass(frozen=True)
class Subject:
    """What is measured.

    Attributes:
        config: The configuration of the cell.
        task: The task, with its data.
        model: The model with its best weights, on the device; None before training.
        rows: The rows of each split, by name; None before the data is prepared.
        test: The evaluation of the test split; None before it.
        own_score: The score that the task computes itself, None if it computes none.
    """

    config: CellConfig
    task: Task
    model: Any = None
    rows: Mapping[str, Rows] | None = None
    test: Evaluation | None = None
    own_score: TaskScore | None = None


@dataclass(frozen=True)
class Context:
    """How it is measured.

    Attributes:
        hardware: Device and precision of this process.
        group: The same of all processes of the cell.
        attempt: Number of the attempt, which some sections store.
        batch_size: Examples per batch, ``measure.evaluation_batch_size``.
        described: A function that returns the time of the attempt, and the machine that measures it.
        evaluations: Evaluations at other lengths, which measurements add for the predictions of the record.
    """

    hardware: Hardware
    group: Hardware
    attempt: int
    batch_size: int
    described: Callable[[], Attempt]
    evaluations: dict[PointKey, Evaluation] = field(default_factory=dict)
