"""Scores on minimal pairs: examples that differ in one element and in their answer."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Any, TypedDict

from lra_bench.contracts.measurement import Column, Display, Measurement

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

    from .subject import Context, Subject


class PairPoint(TypedDict):
    """The score on ``n`` minimal pairs, those of one label or all.

    ``score`` is the fraction of pairs of which both members are predicted correctly, ``low`` and ``high`` are the ends
    of its 95 % confidence interval, and ``chance`` is the score of random guesses.
    """

    label: str
    n: int
    score: float
    low: float
    high: float
    chance: float | None


class PairScores(TypedDict):
    """Scores on minimal pairs: examples that differ in one element and in their answer.

    Attributes:
        slicing: What the labels are, such as ``level`` or ``distance``.
        total: The score on all pairs.
        points: The score by label, in the order of the labels.
        attempt: Number of the attempt in which they were measured.
    """

    slicing: str
    total: PairPoint
    points: list[PairPoint]
    attempt: int


class MinimalPairs(Measurement):
    """Scores on minimal pairs, of tasks that have some."""

    name = "minimal_pairs"
    stage = "testing"
    title = "Minimal pairs"
    Result = PairScores
    columns = (
        Column(
            name="minimal_pairs",
            help="share of minimal pairs (examples that differ in one element and in their answer) of which both "
            "members are predicted correctly",
            source="minimal_pairs.total.score",
            after=("inference_memory_exponent", "train_peak_resident_growth_bytes"),
            shown_after=("score_<ratio>",),
            seeds="mean",
            dtype="float64",
            display=Display("pairs", "percent"),
        ),
    )
    figures = ("lra_bench.figures.slices:minimal_pairs",)

    def measure(self, subject: Subject, context: Context) -> PairScores | None:
        """Evaluate the pairs; the result is None if the task has none."""
        from lra_bench.data.batches import Rows
        from lra_bench.training.evaluation import evaluate

        task, pairs = subject.task, subject.task.minimal_pairs()
        if pairs is None:
            return None
        rows, batch_size = Rows(pairs.rows, task.spec), context.batch_size
        result = evaluate(subject.model, rows, task.spec, context.hardware, batch_size, "Minimal pairs")
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
            "attempt": context.attempt,
        }

    @classmethod
    def facts(cls, section: PairScores) -> Iterator[tuple[str, str]]:
        """Yield the score on the pairs of each label and on all."""
        for name, pairs in cls._by_label(section):
            chance = "" if pairs["chance"] is None else f", chance {pairs['chance']:.2g}"
            interval = f"[{pairs['low']:.4f}, {pairs['high']:.4f}]"
            yield "minimal pairs", f"{name}: {pairs['score']:.4f} {interval} over {pairs['n']:,} pairs{chance}"

    @classmethod
    def facts_of_seeds(cls, sections: Sequence[PairScores]) -> Iterator[tuple[str, str]]:
        """Yield the mean score over seeds on the pairs of each label and on all of them."""
        for found in zip(*map(cls._by_label, sections), strict=False):
            mean = sum(point["score"] for _, point in found) / len(found)
            name, point = found[-1]
            yield name, f"both right in {100 * mean:.1f} % of {point['n']:,} pairs"

    @staticmethod
    def _by_label(section: PairScores) -> Iterator[tuple[str, PairPoint]]:
        """Yield the scores of each label and of all pairs, with names such as ``level 2``."""
        yield from ((f"{section['slicing']} {point['label']}", point) for point in section["points"])
        yield "all pairs", section["total"]


def _point(label: str, right: NDArray[np.bool_], chance: NDArray[Any] | None) -> PairPoint:
    """Return the score on some pairs from whether each is right and from the probability that guesses are, (P,)."""
    from lra_bench.statistics.intervals import wilson

    low, high = wilson(int(right.sum()), len(right))
    return {
        "label": label,
        "n": len(right),
        "score": float(right.mean()),
        "low": low,
        "high": high,
        "chance": None if chance is None else float(chance.mean()),
    }
