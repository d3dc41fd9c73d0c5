"""Significance tests of two variants on one task, over seeds and over test examples."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from functools import cached_property
from typing import TYPE_CHECKING, Any

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
    welch_t,
)
from lra_bench.statistics.seeds import SeedSummary, scale, summarise_seeds

from .pairing import Pairs, pair
from .runs import seed_score

if TYPE_CHECKING:
    import numpy as np

A, B = "A", "B"
EVERY_SEED = " in every seed"
NO_DIFFERENCE = "no difference shown"
TOO_FEW_SEEDS = "too few seeds"
NOT_TESTED = "not tested"
FLOOR_NOT_CLEARED = "floor not cleared"


@dataclass(frozen=True)
class Entry:
    """A variant in a ranking: its finished seeds on one task, and their summary.

    ``key`` is unique within a ranking: model, reference board and hash. ``name`` is the name of the variant.
    """

    key: tuple[str, str, str]
    name: str
    records: Mapping[int, Record]

    @cached_property
    def summary(self) -> SeedSummary:
        """The summary of the seeds."""
        floors = [floor[1] for record in self.records.values() if (floor := record.best_floor())]
        return summarise_seeds(
            [seed_score(self.records[seed]) for seed in sorted(self.records)],
            self.first.higher_is_better,
            _mean(floors) if floors else None,
        )

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
    low: float | None
    high: float | None
    unit: str
    paired: bool
    every_seed: bool
    clears_floor_a: bool | None
    clears_floor_b: bool | None
    p_seeds: float | None
    examples: int | None
    p_examples: float | None
    p_each_seed: list[float]
    p: float | None
    p_holm: float | None
    together: int
    against: str
    detectable: float | None
    verdict: str
    remarks: list[str]

    def as_dict(self) -> dict[str, Any]:
        """Return the comparison as plain values."""
        return asdict(self)

    @property
    def verdict_of_a(self) -> str:
        """The verdict about A: ``better``, ``worse``, both also ``in every seed``, or that no claim is made."""
        if self.verdict.startswith(A):
            return "better" + self.verdict.removeprefix(A)
        if self.verdict == B or self.verdict == B + EVERY_SEED:
            return "worse" + self.verdict.removeprefix(B)
        return self.verdict

    @property
    def level(self) -> float:
        """The significance level of ``p_holm``: stricter if the claim holds for these seeds only."""
        return LEVEL if self.over_seeds else EVERY_SEED_LEVEL

    @property
    def over_seeds(self) -> bool:
        """Whether there are enough seeds for a claim about other seeds."""
        return (len(self.shared_seeds) if self.paired else min(len(self.seeds_a), len(self.seeds_b))) >= CLAIM_SEEDS


def compare_pair(place: tuple[str, str | None, str, str], a: Entry, b: Entry) -> Comparison:
    """Compare two variants on one task, without correction for other comparisons.

    Args:
        place: Task, version of the task, protocol, and what the data lacks.
        a: Variant A.
        b: Variant B.

    Returns:
        The comparison, whose ``p_holm`` is ``p``.
    """
    task, version, protocol, missing = place
    shared = sorted(a.records.keys() & b.records.keys())
    paired = len(shared) >= CLAIM_SEEDS or min(len(a.records), len(b.records)) < CLAIM_SEEDS
    scores_a, scores_b = (
        _scores(entry.records, shared if paired and shared else sorted(entry.records)) for entry in (a, b)
    )
    pairs = pair(a.records, b.records, shared) if paired else "the seeds differ"
    remarks = [f"no test over examples: {pairs}"] if isinstance(pairs, str) else []
    difference = _mean(scores_a) - _mean(scores_b)
    base = Comparison(
        task=task, task_version=version, protocol=protocol, data_lacks=missing, metric=str(a.first.metric),
        seeds_a=sorted(a.records), seeds_b=sorted(b.records), shared_seeds=shared, score_a=_mean(scores_a),
        score_b=_mean(scores_b), difference=difference, low=None, high=None, unit="seeds", paired=paired,
        every_seed=False, clears_floor_a=a.summary.clears_floor, clears_floor_b=b.summary.clears_floor, p_seeds=None,
        examples=None, p_examples=None, p_each_seed=[], p=None, p_holm=None, together=1, against=b.name,
        detectable=None, verdict=TOO_FEW_SEEDS, remarks=remarks,
    )  # fmt: skip
    over_seeds = _over_seeds(scores_a, scores_b, paired) if base.over_seeds else {}
    over_examples = {} if isinstance(pairs, str) else _over_examples(pairs, base.level, not over_seeds)
    detectables = [side.pop("detectable") for side in (over_seeds, over_examples) if "detectable" in side]
    # The interval over examples is used if there is none over seeds.
    known = {**over_examples, **over_seeds}
    tested = "p_examples" in known
    enough = len(shared) >= MIN_SEEDS if tested else base.over_seeds and a.first.higher_is_better
    tests = [known[name] for name in ("p_seeds", "p_examples") if name in known]
    p = max(tests) if enough and tests else None
    largest = scale(a.first.higher_is_better, min(_floors(a, b), default=None))
    detectable = max(detectables) if enough and detectables else None
    found = replace(base, **known, p=p, detectable=None if detectable is None or detectable > largest else detectable)
    return with_verdict(found, p, 1, b.name)


def uncorrected_p(a: Entry, b: Entry) -> float | None:
    """Return ``p`` of ``compare_pair`` if the difference could be reported, 1 if it could not, None if not tested.

    The better variant must clear the floor. With fewer than ``CLAIM_SEEDS`` seeds the difference must be significant in
    every seed. Faster than ``compare_pair``, because intervals are not computed.
    """
    shared = sorted(a.records.keys() & b.records.keys())
    paired = len(shared) >= CLAIM_SEEDS or min(len(a.records), len(b.records)) < CLAIM_SEEDS
    if paired and len(shared) < MIN_SEEDS:
        return None
    seeds = [shared if paired else sorted(entry.records) for entry in (a, b)]
    scores_a, scores_b = (_scores(entry.records, own) for entry, own in zip((a, b), seeds, strict=True))
    better = a if (_mean(scores_a) > _mean(scores_b)) == a.first.higher_is_better else b
    if not better.summary.clears_floor:
        return 1.0
    if not paired:
        return float(_welch(scores_a, scores_b)) if a.first.higher_is_better else None
    differences = [x - y for x, y in zip(scores_a, scores_b, strict=True)]
    p_seeds = float(paired_t(differences)) if len(shared) >= CLAIM_SEEDS else None
    if p_seeds is not None and p_seeds > LEVEL:
        return p_seeds
    pairs = pair(a.records, b.records, shared)
    if isinstance(pairs, str):
        return p_seeds if a.first.higher_is_better else None
    if p_seeds is None and not _in_every_seed(pairs, _each_seed(pairs)):
        return 1.0
    return max(p_seeds or 0.0, _together(pairs))


def with_verdict(c: Comparison, p: float | None, together: int, against: str) -> Comparison:
    """Return the comparison with a corrected p-value and its verdict.

    Args:
        c: The comparison.
        p: ``c.p`` after the correction.
        together: The number of comparisons that were corrected together.
        against: The name of the reference row of the correction.

    Returns:
        The comparison with ``p_holm``, ``together``, ``against`` and ``verdict``.
    """
    return replace(c, p_holm=p, together=together, against=against, verdict=_verdict(c, p))


def _verdict(c: Comparison, p: float | None) -> str:
    if p is None and c.over_seeds:
        return NOT_TESTED
    if not c.clears_floor_a and not c.clears_floor_b:
        return FLOOR_NOT_CLEARED
    if p is None:
        return TOO_FEW_SEEDS
    if p > c.level or c.difference == 0 or not (c.over_seeds or c.every_seed):
        return NO_DIFFERENCE
    better = A if (c.difference > 0) == (c.metric == "accuracy") else B
    if not (c.clears_floor_a if better == A else c.clears_floor_b):
        return FLOOR_NOT_CLEARED
    return better if c.over_seeds else better + EVERY_SEED


def _over_seeds(a: Sequence[float], b: Sequence[float], paired: bool) -> dict[str, Any]:
    """Return interval, p-value and detectable difference over seeds."""
    import numpy as np

    if paired:
        differences = [x - y for x, y in zip(a, b, strict=True)]
        low, high = t_interval(differences)
        error, dof = float(np.std(differences, ddof=1)) / len(differences) ** 0.5, float(len(differences) - 1)
        p = float(paired_t(differences))
    else:
        deviations = [float(np.std(side, ddof=1)) for side in (a, b)]
        spreads = [deviation**2 / len(side) for deviation, side in zip(deviations, (a, b), strict=True)]
        error = sum(spreads) ** 0.5
        parts = sum(spread**2 / (len(side) - 1) for spread, side in zip(spreads, (a, b), strict=True))
        dof = error**4 / parts if parts else float(len(a) + len(b) - 2)
        p = _welch(a, b)
        half = float(t_quantile(1 - LEVEL / 2, dof)) * error
        low, high = _mean(a) - _mean(b) - half, _mean(a) - _mean(b) + half
    return {
        "low": low,
        "high": high,
        "unit": "seeds",
        "p_seeds": p,
        "detectable": detectable_difference(error, dof),
    }


def _welch(a: Sequence[float], b: Sequence[float]) -> float:
    import numpy as np

    deviations = [float(np.std(side, ddof=1)) for side in (a, b)]
    return float(welch_t([_mean(a), _mean(b)], deviations, [len(a), len(b)])[0, 1])


def _over_examples(pairs: Pairs, level: float, interval: bool) -> dict[str, Any]:
    """Return p-values and detectable difference over test examples, averaged over seeds in each example.

    With ``interval`` the result contains the confidence interval of the difference.
    """
    means, scored, n = pairs.differences.mean(axis=0), pairs.scored, len(pairs.scored)
    if pairs.consecutive:
        _, error, freedom, _ = block_error(means, scored)
        ends = block_interval(means, scored) if interval else (None, None)
    else:
        total = float(scored.sum())
        residuals = means - float(means.sum()) / total * scored
        error, freedom = float((residuals**2).sum() * n / max(n - 1, 1)) ** 0.5 / total, max(n - 1, 1)
        ends = bootstrap(means, scored, seed=0) if interval else (None, None)
    each = _each_seed(pairs)
    return {
        "low": ends[0],
        "high": ends[1],
        "unit": "examples",
        "examples": n,
        "p_examples": _together(pairs),
        "p_each_seed": each,
        "every_seed": _in_every_seed(pairs, each),
        "detectable": detectable_difference(error, freedom, level),
    }


def _together(pairs: Pairs) -> float:
    """Return the p-value over examples of all seeds together."""
    return _over(pairs, pairs.differences.sum(axis=0))


def _each_seed(pairs: Pairs) -> list[float]:
    """Return the p-value over examples of each seed."""
    return [_over(pairs, own) for own in pairs.differences]


def _over(pairs: Pairs, differences: np.ndarray) -> float:
    return block_test(differences, pairs.scored) if pairs.consecutive else swap_test(differences)


def _in_every_seed(pairs: Pairs, p_each_seed: Sequence[float]) -> bool:
    """Return whether the same variant is significantly better in each seed."""
    sums = pairs.differences.sum(axis=1)
    return bool((sums > 0).all() or (sums < 0).all()) and max(p_each_seed) < LEVEL


def _floors(*entries: Entry) -> list[float]:
    return [floor[1] for entry in entries for record in entry.records.values() if (floor := record.best_floor())]


def _scores(side: Mapping[int, Record], seeds: Sequence[int]) -> list[float]:
    return [score for seed in seeds if (score := side[seed].score()) is not None]


def _mean(values: Sequence[float]) -> float:
    return sum(values) / len(values)
