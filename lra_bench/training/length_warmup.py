"""Length warm-up: shorter examples in the first training steps (Li et al. 2021, arXiv 2108.06084)."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING

from lra_bench.config.schema import Train
from lra_bench.contracts import Batch, UserError
from lra_bench.data.batches import Rows

if TYPE_CHECKING:
    from lra_bench.contracts import Task

Batches = Callable[[int], Batch]
"""Function from the step to its batch."""


def training_rows(task: Task, train: Train) -> dict[str, Rows]:
    """Return the training examples, and those of each length of ``train.length_warmup`` as ``train@<length>``.

    They are the training split of the task at that length. In language modelling, windows of the same text are used.
    Raises ``UserError`` if a length is not below the training length, or if the task has no examples of it.
    """
    rows = {"train": Rows(task.split("train"), task.spec)}
    for length, _ in train.length_warmup or ():
        at = f"train.length_warmup: {length:,} tokens"
        if length >= task.spec.train_length:
            raise UserError(f"{at} are not below the training length of {task.spec.name}, {task.spec.train_length:,}")
        if task.spec.kind == "language_modeling":
            continue
        if reason := task.supports_length(length):
            raise UserError(f"{at}: {reason}")
        rows[f"train@{length}"] = Rows(task.split("train", length), task.spec)
    return rows


class LengthWarmup:
    """The batches of stages, of which each has a number of steps, followed by those of the training length.

    Args:
        stages: Number of steps and batches of each stage. A stage begins with its batch of step 0.
        last: Batches of the remaining steps.
    """

    def __init__(self, stages: Sequence[tuple[int, Batches]], last: Batches) -> None:
        self.stages, self.last = stages, last

    def __call__(self, step: int) -> Batch:
        """Return the batch of one step."""
        for steps, batches in self.stages:
            if step < steps:
                return batches(step)
            step -= steps
        return self.last(step)
