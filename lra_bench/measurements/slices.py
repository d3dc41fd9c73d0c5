"""Test scores of slices: named subsets of the scored targets."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any, TypedDict, cast

from lra_bench.contracts import Slicing, Task, TaskScore
from lra_bench.contracts.measurement import Measurement, Points
from lra_bench.records.sections import Margin

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

    from lra_bench.training.evaluation import Evaluation

    from .subject import Context, Subject


class SlicePoint(TypedDict):
    """The test score of a slice: a named subset of the scored targets.

    ``Slices.points`` describes the other fields.

    Attributes:
        floors: All floors by name.
        margins: Improvement of the score over the strongest floor, paired by row.
        attempt: Number of the attempt in which the slice was measured.
    """

    slicing: str
    label: str
    n: int
    score: float
    low: float
    high: float
    floor: float | None
    floor_name: str | None
    floors: dict[str, float]
    margins: dict[str, Margin]
    skill: float | None
    attempt: int


class Slices(Measurement):
    """Test scores of slices, or the parts of a score that the task computes itself."""

    name = "slices"
    stage = "testing"
    title = "Score by slice"
    needs = ("test",)
    Result = list[SlicePoint]
    figures = ("lra_bench.figures.slices:slices",)
    logged = ("slices",)
    points = (
        Points(
            name="slices",
            path="slices",
            of=lambda slices: slices,
            columns={
                "slicing": "property by which the scored targets of the test split are divided, such as length",
                "label": "values of the property in this slice, such as 8–15",
                "metric": "accuracy (between 0 and 1)",
                "score": "score on the targets of the slice",
                "low": "lower end of the 95 % confidence interval of the score over examples",
                "high": "upper end of the 95 % confidence interval of the score over examples",
                "n": "number of scored targets",
                "floor_name": "name of the strongest floor (baseline without a model) on these targets",
                "floor": "score of the floor on the same targets",
                "skill": "score normalised so that the floor is 0 and a perfect score is 1",
            },
        ),
    )

    def measure(self, subject: Subject, context: Context) -> list[SlicePoint]:
        """Compute the score of every slice of the test split; only accuracies are scored by slice.

        The points of a slicing are in the order of its labels; labels without a target have none. Raises ``ValueError``
        if the task returns another number of targets than were scored.
        """
        from .extrapolation import interval_of_task

        task, result = subject.task, subject.test
        if (own := subject.own_score) is not None:  # its parts are the slices, without floors
            found = []
            for slicing, scores in own.parts.items():
                for label, score in scores.items():
                    n = own.trials.get(slicing, {}).get(label, own.n)
                    interval = interval_of_task(TaskScore(score, n), task.spec)
                    found.append(_point(slicing, label, n, score, interval, context.attempt))
            return found
        slicings = task.slices("test") if task.spec.metric == "accuracy" else {}
        if not slicings:
            return []
        floors = task.floor_targets("test")
        assert result is not None and result.target_correct is not None
        sizes = {name: len(slicing.label_of) for name, slicing in slicings.items()}
        sizes |= {f"floor {name}": len(correct) for name, correct in floors.items()}
        for name, size in sizes.items():
            if size != result.n:
                raise ValueError(f"{task.spec.name}: {name} has {size:,} targets, the test split {result.n:,}")
        of_each = (_points(task, *named, result, floors, context.attempt) for named in slicings.items())
        return [point for points in of_each for point in points]

    @classmethod
    def facts(cls, section: list[SlicePoint]) -> Iterator[tuple[str, str]]:
        """Yield the score of every slice."""
        yield from ((f"by {part['slicing']}", f"{part['label']}: {score_text(part)}") for part in section)

    @classmethod
    def facts_of_seeds(cls, sections: Sequence[list[SlicePoint]]) -> Iterator[tuple[str, str]]:
        """Yield the mean score over seeds of each slice, with the floor of one of them."""
        of_slice: dict[str, list[SlicePoint]] = {}
        for point in (point for section in sections for point in section):
            of_slice.setdefault(f"{point['slicing'].replace('_', ' ')} {point['label']}", []).append(point)
        for name, points in of_slice.items():
            mean, floor = sum(point["score"] for point in points) / len(points), points[-1]["floor"]
            compared = "" if floor is None else f", floor {100 * floor:.1f} %"
            yield name, f"{100 * mean:.1f} %{compared}, {points[-1]['n']:,} targets"


def score_text(point: Mapping[str, Any] | SlicePoint) -> str:
    """Return a score with its interval, number of targets and strongest floor."""
    floor = f", {point['floor_name']} floor {point['floor']:.4f}" if point["floor"] is not None else ""
    low, high = point["low"], point["high"]
    interval = f" [{low:.4f}, {high:.4f}]" if low is not None and high is not None else ""
    return f"{point['score']:.4f}{interval} over {point['n']:,} targets{floor}"


def _point(
    slicing: str, label: str, n: int, score: float, interval: tuple[Any, Any], attempt: int, **floors: Any
) -> SlicePoint:
    """Return the point of a slice, without floors unless ``floors`` contains their fields."""
    low, high = interval
    unknown: dict[str, Any] = {"floor": None, "floor_name": None, "floors": {}, "margins": {}, "skill": None}
    of_slice = {"slicing": slicing, "label": label, "n": n, "score": score, "low": low, "high": high}
    return cast(SlicePoint, {**of_slice, **unknown, **floors, "attempt": attempt})


def _points(
    task: Task, name: str, slicing: Slicing, result: Evaluation, floors: Mapping[str, NDArray[Any]], attempt: int
) -> list[SlicePoint]:
    import numpy as np

    from lra_bench.records.skill import skill, strongest

    from .extrapolation import interval, margins

    spec, found = task.spec, []
    row_of = np.repeat(np.arange(len(result.scored)), result.scored)
    for number, label in enumerate(slicing.labels):
        members = slicing.label_of == number
        if not members.any():
            continue
        rows = row_of[members]
        own = _subset(result, members, rows)
        of_floors = {floor: float(correct[members].mean()) for floor, correct in floors.items()}
        floor_name, floor = strongest(of_floors, spec.higher_is_better) or (None, None)
        floor_rows = {floor_name: _per_row(floors[floor_name][members], rows)} if floor_name else {}
        point = _point(
            *(name, label, own.n, own.score, interval(own, spec), attempt),
            floor=floor,
            floor_name=floor_name,
            floors=of_floors,
            margins=margins(own, floor_rows, spec),
            skill=skill(own.score, floor, spec.higher_is_better),
        )
        found.append(point)
    return found


def _subset(result: Evaluation, members: NDArray[Any], rows: NDArray[Any]) -> Evaluation:
    """Return accuracy and counts of some targets, over the rows that contain them; the loss is not split."""
    import numpy as np

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
    import numpy as np

    starts = np.flatnonzero(np.diff(rows, prepend=-1))  # the targets are in the order of the rows
    return np.add.reduceat(np.asarray(values, dtype=np.float64), starts)
