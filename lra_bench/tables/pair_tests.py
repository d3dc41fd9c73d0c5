"""Significance tests of two variants on one task, over seeds and over test examples."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from functools import cached_property
from typing import Any

import numpy as np

from lra_bench.records.schema import Record
from lra_bench.statistics.blocks import block_error, block_interval, block_test
from lra_bench.statistics.intervals import bootstrap, t_interval, t_quantile
from lra_bench.statistics.paired import (
    CLAIM_SEEDS,
    EVERY_SEED_LEVEL,
    LEVEL,
    MIN_SEEDS,
    detectable_difference,
    paired_t,
    swap_test,
    welch,
)
from lra_bench.statistics.seeds import SeedSummary, scale, summarise_seeds

from .pairing import Pairs, pair
from .runs import seed_score

A, B = "A", "B"
EVERY_SEED = " in every seed"
NO_DIFFERENCE = "no difference shown"
TOO_FEW_SEEDS = "too few seeds"
NOT_TESTED = "not tested"
FLOOR_NOT_CLEARED = "floor not cleared"


@dataclass(frozen=True)
class Entry:
    """A variant in a ranking: its finished seeds on one task, and their summary.

    ``key`` is unique within a ranking: model, reference board and hash.
    """

    key: tuple[str, str, str]
    records: Mapping[int, Record]

    @cached_property
    def summary(self) -> SeedSummary:
        """The summary of the seeds."""
        seeds = [seed_score(self.records[seed]) for seed in sorted(self.records)]
        floor = _mean(self.floors) if self.floors else None
        return summarise_seeds(seeds, self.first.higher_is_better, floor)

    @property
    def floors(self) -> list[float]:
        """The known scores of the strongest floor of the seeds."""
        return [floor[1] for record in self.records.values() if (floor := record.best_floor())]

    @property
    def name(self) -> str:
        """The name of the variant."""
        return next(iter(self.records.values())).variant_name

    @property
    def first(self) -> Record:
        """The record of the first seed."""
        return self.records[min(self.records)]


@dataclass(frozen=True, kw_only=True)
class Comparison:
    """The comparison of variants A and B on one task under one protocol.

    Attributes:
        task: The task.
        task_version: The version of the task's data, None without data.
        protocol: The protocol.
        data_lacks: Missing or lossy parts of the data, empty if none.
        metric: The metric of the scores.
        seeds_a: The seeds of A.
        seeds_b: The seeds of B.
        shared_seeds: The seeds of both.
        score_a: The mean score of A in units of the metric, over ``shared_seeds`` if the test is paired, otherwise over
            ``seeds_a``.
        score_b: The mean score of B.
        difference: ``score_a`` minus ``score_b``.
        low: The lower end of the 95 % confidence interval of the difference, None if unknown.
        high: The upper end of the interval.
        unit: The samples of the interval, ``seeds`` (if there are ``CLAIM_SEEDS``) or ``examples``.
        paired: Whether the test over seeds is paired.
        every_seed: Whether the difference has the same sign in every shared seed, and each seed's own test over
            examples is significant.
        clears_floor_a: Whether A is better than the strongest floor in every seed, None if unknown.
        clears_floor_b: Whether B is.
        p_seeds: The p-value over seeds of Student's paired t-test, or of Welch's t-test if ``paired`` is false.
        examples: The number of paired test examples.
        p_examples: The p-value over examples of a permutation test that swaps A and B in each test example, in all
            shared seeds together. If the examples are consecutive windows of a text, the p-value of a moving-block
            bootstrap.
        p_each_seed: The p-values of the same test in each shared seed. With one target per example the permutation test
            is McNemar's.
        p: With ``CLAIM_SEEDS`` or more seeds the larger of ``p_seeds`` and ``p_examples``, because a difference between
            models must hold for other seeds and for other examples. With ``MIN_SEEDS`` or more ``p_examples``, which
            holds for these seeds only. None with fewer seeds, or without the predictions of so few seeds or of language
            models.
        p_holm: ``p`` after Holm's correction for the comparisons of all rows of the ranking with the reference row.
        together: The number of comparisons that were corrected together.
        against: The name of the reference row of the correction.
        detectable: The true difference that the tests detect with 80 % power before the correction, None if it exceeds
            the scale of the metric.
        verdict: ``A`` or ``B`` if the better one clears the floor and the difference is significant over seeds and
            examples; ``A in every seed`` or ``B in every seed`` if it is significant over examples, and in each of
            fewer seeds; ``no difference shown``; ``floor not cleared``; ``too few seeds``; or ``not tested``.
        remarks: Remarks for the reader.
    """

    task: str
    task_version: str | None
    protocol: str
    data_lacks: str
    metric: str
    seeds_a: list[int]
    seeds_b: list[int]
    shared_seeds: list[int]
    score_a: float
    score_b: float
    difference: float
    low: float | None = None
    high: float | None = None
    unit: str = "seeds"
    paired: bool
    every_seed: bool = False
    clears_floor_a: bool | None
    clears_floor_b: bool | None
    p_seeds: float | None = None
    examples: int | None = None
    p_examples: float | None = None
    p_each_seed: list[float] = field(default_factory=list)
    p: float | None
    p_holm: float | None = None
    together: int = 1
    against: str = ""
    detectable: float | None
    verdict: str = TOO_FEW_SEEDS
    remarks: list[str]

    def as_dict(self) -> dict[str, Any]:
        """Return the comparison as plain values."""
        return asdict(self)

    @property
    def verdict_of_a(self) -> str:
        """The verdict about A: ``better``, ``worse``, both also ``in every seed``, or that no claim is made."""
        claims = {A: "better", B: "worse", A + EVERY_SEED: "better" + EVERY_SEED, B + EVERY_SEED: "worse" + EVERY_SEED}
        return claims.get(self.verdict, self.verdict)

    @property
    def over_seeds(self) -> bool:
        """Whether there are enough seeds for a claim about other seeds."""
        return min(len(self.seeds_a), len(self.seeds_b)) >= CLAIM_SEEDS


class PairTests:
    """The tests of two variants on one task, computed when they are requested."""

    def __init__(self, a: Entry, b: Entry) -> None:
        self.a, self.b = a, b
        self.shared = sorted(a.records.keys() & b.records.keys())
        self.over_seeds = min(len(a.records), len(b.records)) >= CLAIM_SEEDS
        self.level = LEVEL if self.over_seeds else EVERY_SEED_LEVEL
        self.paired = len(self.shared) >= CLAIM_SEEDS or not self.over_seeds
        used = self.shared if self.paired else []
        self.scores = tuple(
            [score for seed in used or sorted(each.records) if (score := each.records[seed].score()) is not None]
            for each in (a, b)
        )
        self.difference = _mean(self.scores[0]) - _mean(self.scores[1])

    @cached_property
    def better(self) -> Entry:
        """The variant with the better mean score."""
        return self.a if (self.difference > 0) == self.a.first.higher_is_better else self.b

    @cached_property
    def pairs(self) -> Pairs | str:
        """The paired test examples, or the reason why there are none."""
        return pair(self.a.records, self.b.records, self.shared) if self.paired else "the seeds differ"

    @cached_property
    def of_seeds(self) -> dict[str, Any]:
        """Interval, p-value and detectable difference over seeds, empty if there are too few."""
        if not self.over_seeds:
            return {}
        a, b = self.scores
        if self.paired:
            differences = [x - y for x, y in zip(a, b, strict=True)]
            low, high = t_interval(differences)
            error, freedom = float(np.std(differences, ddof=1)) / len(differences) ** 0.5, float(len(differences) - 1)
            p = float(paired_t(differences))
        else:
            error, freedom, p = welch(a, b)
            half = float(t_quantile(1 - LEVEL / 2, freedom)) * error
            low, high = self.difference - half, self.difference + half
        return {
            "low": low, "high": high, "unit": "seeds", "p_seeds": p, "detectable": detectable_difference(error, freedom)
        }  # fmt: skip

    @cached_property
    def p_examples(self) -> float | None:
        """The p-value over test examples of all seeds together, None if they cannot be paired."""
        return None if isinstance(self.pairs, str) else _p_value(self.pairs, self.pairs.differences.sum(axis=0))

    @cached_property
    def p_each_seed(self) -> list[float]:
        """The p-value over test examples of each shared seed, empty if they cannot be paired."""
        return [] if isinstance(self.pairs, str) else [_p_value(self.pairs, own) for own in self.pairs.differences]

    @cached_property
    def every_seed(self) -> bool:
        """Whether the same variant is significantly better in each shared seed."""
        if isinstance(self.pairs, str):
            return False
        sums = self.pairs.differences.sum(axis=1)
        return bool((sums > 0).all() or (sums < 0).all()) and max(self.p_each_seed) < LEVEL

    @cached_property
    def p(self) -> float | None:
        """The larger p-value of both tests, None if there are too few seeds (see ``Comparison``)."""
        if self.p_examples is None:
            return self.of_seeds["p_seeds"] if self.over_seeds and self.a.first.higher_is_better else None
        if len(self.shared) < MIN_SEEDS:
            return None
        return max(self.of_seeds.get("p_seeds", 0.0), self.p_examples)

    def mean_over_examples(self, interval: bool) -> dict[str, Any]:
        """Return the detectable difference over test examples, averaged over seeds in each, and the interval."""
        assert not isinstance(self.pairs, str)
        means, scored, n = self.pairs.differences.mean(axis=0), self.pairs.scored, len(self.pairs.scored)
        if self.pairs.consecutive:
            _, error, freedom, _ = block_error(means, scored)
            ends = block_interval(means, scored) if interval else (None, None)
        else:
            total = float(scored.sum())
            residuals = means - float(means.sum()) / total * scored
            error, freedom = float((residuals**2).sum() * n / max(n - 1, 1)) ** 0.5 / total, max(n - 1, 1)
            ends = bootstrap(means, scored, seed=0) if interval else (None, None)
        detectable = detectable_difference(error, freedom, self.level)
        return {"low": ends[0], "high": ends[1], "unit": "examples", "detectable": detectable}


def compare_pair(place: tuple[str, str | None, str, str], a: Entry, b: Entry) -> Comparison:
    """Compare two variants on one task, without correction for other comparisons.

    ``place`` is the task, its version, the protocol, and what the data lacks. ``p_holm`` of the comparison is ``p``.
    """
    task, version, protocol, missing = place
    tests, found = PairTests(a, b), dict[str, Any]()
    unpaired = isinstance(tests.pairs, str)
    sides = [] if unpaired else [tests.mean_over_examples(interval=not tests.over_seeds)]
    sides += [tests.of_seeds] if tests.over_seeds else []
    detectable = max((side["detectable"] for side in sides), default=None) if tests.p is not None else None
    largest = scale(a.first.higher_is_better, min(a.floors + b.floors, default=None))
    for side in sides:  # the interval over examples is used if there is none over seeds
        found |= side
    found["detectable"] = None if detectable is None or detectable > largest else detectable
    comparison = Comparison(
        task=task, task_version=version, protocol=protocol, data_lacks=missing, metric=str(a.first.metric),
        seeds_a=sorted(a.records), seeds_b=sorted(b.records), shared_seeds=tests.shared, score_a=_mean(tests.scores[0]),
        score_b=_mean(tests.scores[1]), difference=tests.difference, paired=tests.paired, every_seed=tests.every_seed,
        clears_floor_a=a.summary.clears_floor, clears_floor_b=b.summary.clears_floor, p=tests.p,
        examples=None if isinstance(tests.pairs, str) else len(tests.pairs.scored), p_examples=tests.p_examples,
        p_each_seed=tests.p_each_seed, remarks=[f"no test over examples: {tests.pairs}"] if unpaired else [], **found,
    )  # fmt: skip
    return with_verdict(comparison, tests.p, 1, b.name)


def uncorrected_p(a: Entry, b: Entry) -> tuple[float, int, float] | None:
    """Return the p-value of a pair, 1 if A is better and -1 if B is, and the level of the claim; None if not tested.

    The p-value is ``p`` of ``compare_pair`` if the difference could be reported, otherwise 1: the better variant must
    clear the floor, and with fewer than ``CLAIM_SEEDS`` seeds the difference must be significant in every seed. Faster
    than ``compare_pair``, because intervals over examples are not computed.
    """
    tests = PairTests(a, b)
    if tests.paired and len(tests.shared) < MIN_SEEDS:
        return None
    if not tests.better.summary.clears_floor:
        p: float | None = 1.0
    elif tests.paired and (over_seeds := tests.of_seeds.get("p_seeds", 0.0)) > LEVEL:
        p = over_seeds
    else:
        p = tests.p if tests.over_seeds or isinstance(tests.pairs, str) or tests.every_seed else 1.0
    return None if p is None else (p, 1 if tests.better is a else -1, tests.level)


def with_verdict(c: Comparison, p: float | None, together: int, against: str) -> Comparison:
    """Return the comparison with a corrected p-value and its verdict.

    The other arguments are the fields of ``Comparison``.
    """
    level = LEVEL if c.over_seeds else EVERY_SEED_LEVEL
    better = A if (c.difference > 0) == (c.metric == "accuracy") else B
    if p is None and c.over_seeds:
        verdict = NOT_TESTED
    elif not c.clears_floor_a and not c.clears_floor_b:
        verdict = FLOOR_NOT_CLEARED
    elif p is None:
        verdict = TOO_FEW_SEEDS
    elif p > level or c.difference == 0 or not (c.over_seeds or c.every_seed):
        verdict = NO_DIFFERENCE
    elif not (c.clears_floor_a if better == A else c.clears_floor_b):
        verdict = FLOOR_NOT_CLEARED
    else:
        verdict = better if c.over_seeds else better + EVERY_SEED
    return replace(c, p_holm=p, together=together, against=against, verdict=verdict)


def _p_value(pairs: Pairs, differences: np.ndarray) -> float:
    return block_test(differences, pairs.scored) if pairs.consecutive else swap_test(differences)


def _mean(values: Sequence[float]) -> float:
    return sum(values) / len(values)
