"""Test scores of slices: named subsets of the scored targets."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import numpy as np

from lra_bench.contracts import Slicing, Task
from lra_bench.records.curves import skill, strongest
from lra_bench.records.sections import SlicePoint
from lra_bench.training.evaluation import Evaluation

from .extrapolation import interval, margins

if TYPE_CHECKING:
    from numpy.typing import NDArray


def slice_scores(task: Task, result: Evaluation, attempt: int = 1, split: str = "test") -> list[SlicePoint]:
    """Compute the score of every slice of a split; only accuracies are scored by slice.

    Args:
        task: The task.
        result: The evaluation of the split, with ``target_correct``.
        attempt: The number of the attempt, stored in every point.
        split: Name of the split.

    Returns:
        One point per slicing and label, in the order of the labels; labels without a target have none. The list is
        empty if the task has no slices.

    Raises:
        ValueError: If the task returns another number of targets than were scored.
    """
    slicings = task.slices(split) if task.spec.metric == "accuracy" else {}
    if not slicings:
        return []
    floors = task.floor_targets(split)
    assert result.target_correct is not None
    sizes = {name: len(slicing.label_of) for name, slicing in slicings.items()}
    sizes |= {f"floor {name}": len(correct) for name, correct in floors.items()}
    for name, size in sizes.items():
        if size != result.n:
            raise ValueError(f"{task.spec.name}: {name} has {size:,} targets, the {split} split {result.n:,}")
    return [
        point for name, slicing in slicings.items() for point in _points(task, name, slicing, result, floors, attempt)
    ]


def _points(
    task: Task, name: str, slicing: Slicing, result: Evaluation, floors: Mapping[str, NDArray[Any]], attempt: int
) -> list[SlicePoint]:
    spec, found = task.spec, []
    row_of = np.repeat(np.arange(len(result.scored)), result.scored)
    for number, label in enumerate(slicing.labels):
        members = slicing.label_of == number
        if not members.any():
            continue
        rows = row_of[members]
        own = _subset(result, members, rows)
        of_floors = {floor: float(correct[members].mean()) for floor, correct in floors.items()}
        floor_rows = {floor: _per_row(correct[members], rows) for floor, correct in floors.items()}
        floor_name, floor = strongest(of_floors, spec.higher_is_better) or (None, None)
        low, high = interval(own, spec)
        point: SlicePoint = {
            "slicing": name,
            "label": label,
            "n": own.n,
            "score": own.score,
            "low": low,
            "high": high,
            "floor": floor,
            "floor_name": floor_name,
            "floors": of_floors,
            "margins": margins(own, floor_rows, spec),
            "skill": skill(own.score, floor, spec.higher_is_better),
            "attempt": attempt,
        }
        found.append(point)
    return found


def _subset(result: Evaluation, members: NDArray[Any], rows: NDArray[Any]) -> Evaluation:
    """Return accuracy and counts of some targets, over the rows that contain them; the loss is not split."""
    assert result.target_correct is not None
    correct = result.target_correct[members].astype(np.float64)
    per_row = _per_row(correct, rows)
    return replace(
        result,
        score=float(correct.mean()),
        n=len(correct),
        correct=per_row,
        scored=_per_row(np.ones(len(rows)), rows).astype(np.int64),
    )


def _per_row(values: NDArray[Any], rows: NDArray[Any]) -> NDArray[np.float64]:
    """Return the sum of the values of each row that occurs in ``rows``."""
    starts = np.flatnonzero(np.diff(rows, prepend=-1))  # the targets are in the order of the rows
    return np.add.reduceat(np.asarray(values, dtype=np.float64), starts)
