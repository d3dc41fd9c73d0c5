"""Scores on minimal pairs: examples that differ in one element and in their answer."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np
from torch import nn

from lra_bench.contracts import Task
from lra_bench.data.batches import Rows
from lra_bench.records.sections import PairPoint, PairScores
from lra_bench.runtime.hardware import Hardware
from lra_bench.statistics.intervals import wilson
from lra_bench.training.evaluation import evaluate

if TYPE_CHECKING:
    from numpy.typing import NDArray


def score_pairs(
    model: nn.Module, task: Task, hardware: Hardware, batch_size: int, attempt: int = 1
) -> PairScores | None:
    """Evaluate a trained model on the minimal pairs of a task.

    Args:
        model: The trained model, on the device.
        task: The task.
        hardware: The device and precision.
        batch_size: Examples per batch.
        attempt: The number of the attempt, stored in the section.

    Returns:
        The section of the record; None if the task has no pairs.
    """
    pairs = task.minimal_pairs()
    if pairs is None:
        return None
    result = evaluate(model, Rows(pairs.rows, task.spec), task.spec, hardware, batch_size, "Minimal pairs")
    right = (result.correct == result.scored).reshape(-1, 2).all(axis=1)
    targets = result.scored.reshape(-1, 2).sum(axis=1)
    chance = None if task.spec.chance is None else task.spec.chance**targets
    labels, label_of = pairs.labels
    return {
        "slicing": pairs.slicing,
        "total": _point("all", right, chance),
        "points": [
            _point(label, right[members], None if chance is None else chance[members])
            for number, label in enumerate(labels)
            if (members := label_of == number).any()
        ],
        "attempt": attempt,
    }


def _point(label: str, right: NDArray[np.bool_], chance: NDArray[Any] | None) -> PairPoint:
    """Return the score on some pairs from whether each is right and from the probability that guesses are, (P,)."""
    low, high = wilson(int(right.sum()), len(right))
    return {
        "label": label,
        "n": len(right),
        "score": float(right.mean()),
        "low": low,
        "high": high,
        "chance": None if chance is None else float(chance.mean()),
    }
