"""The floor from which validation skill is computed is the strongest one on the evaluated targets."""

from types import SimpleNamespace
from typing import Any

import datasets
import pytest

from lra_bench.cells.stages import _validation_floor
from lra_bench.contracts import TaskSpec
from lra_bench.data.batches import Rows

TEXT = TaskSpec(
    "toy", "1", "language_modeling", "causal", classes=9, train_length=8, vocabulary_size=9, metric="bits_per_character"
)
CLASSES = TaskSpec("toy", "1", "classification", "either", classes=9, train_length=8, vocabulary_size=9)
DOCUMENTS = [list(range(1, 9)) * 3, [1, 2, 3], list(range(1, 9)) * 2]


class FloorTask:
    """A task whose floors tell which split and which tokens they were asked for."""

    def __init__(self, spec: TaskSpec, parts: bool = True) -> None:
        self.spec, self.parts = spec, parts
        self.spans: list[tuple[int, int, int]] = []

    def floors(self, split: str) -> dict[str, float]:
        assert split == "validation"
        return {"majority": 0.2, "shortcut": 0.4}

    def floors_between(self, split: str, spans: list[tuple[int, int, int]], window: int | None) -> dict[str, float]:
        assert split == "validation" and window == self.spec.train_length
        self.spans = spans
        return {"order_1": 3.0, "order_2": 2.5} if self.parts else {}


def rows(spec: TaskSpec) -> Any:
    table = {"tokens": DOCUMENTS, "target": [0] * 3, "length": [len(tokens) for tokens in DOCUMENTS]}
    return Rows(datasets.Dataset.from_dict(table), spec)


@pytest.mark.parametrize(
    ("spec", "tokens", "parts", "expected"),
    [
        (CLASSES, None, True, ("shortcut", 0.4)),
        (CLASSES, 10, True, ("shortcut", 0.4)),
        (TEXT, None, True, ("majority", 0.2)),
        (TEXT, 10, True, ("order_2", 2.5)),
        (TEXT, 10, False, ("majority", 0.2)),
    ],
)
def test_the_strongest_floor_of_the_evaluated_part_is_returned(
    spec: TaskSpec, tokens: int | None, parts: bool, expected: tuple[str, float]
) -> None:
    task: Any = FloorTask(spec, parts)
    assert _validation_floor(task, rows(spec), tokens) == expected


def test_floors_are_those_of_the_tokens_that_evaluations_score() -> None:
    """The first document has 23 targets in windows of 8, the second 2 targets in one window."""
    task: Any = FloorTask(TEXT)
    _validation_floor(task, rows(TEXT), 10)
    assert task.spans == [(0, 1, 17)]  # two windows of 8 positions are the fewest with 10 scored tokens
    _validation_floor(task, rows(TEXT), 24)
    assert task.spans == [(0, 1, 24), (1, 1, 3)]


def test_a_task_without_floors_has_none() -> None:
    task: Any = SimpleNamespace(spec=CLASSES, floors=lambda split: {})
    assert _validation_floor(task, rows(CLASSES), None) == (None, None)
