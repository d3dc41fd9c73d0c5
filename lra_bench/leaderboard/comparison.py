"""Significance tests of two variants over seeds and over examples, corrected for the number of tasks."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

from lra_bench.contracts import UserError
from lra_bench.records.schema import Record
from lra_bench.statistics.intervals import bootstrap, t_interval
from lra_bench.statistics.paired import LEVEL, MIN_SEEDS, detectable_difference, mcnemar, paired_t, swap_test, welch_t
from lra_bench.statistics.ties import holm

from .naming import find_variant, select
from .pairing import Pairs, pair
from .runs import missing_data

Place = tuple[str, str | None, str, str]


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
        unit: The samples of the interval, ``seeds`` or ``examples``.
        paired: Whether the test over seeds is paired.
        p_seeds: The p-value over seeds of Student's paired t-test, or of Welch's t-test if ``paired`` is false.
        examples: The number of paired test examples.
        p_examples: The p-value over examples of a permutation test that swaps A and B in each test example, in all
            shared seeds together.
        p_mcnemar: The p-values of McNemar's test over examples, one per shared seed.
        p: The larger of ``p_seeds`` and ``p_examples``, because a difference between models must hold for other seeds
            and for other examples. None with too few seeds.
        p_holm: ``p`` after Holm's correction for the number of comparisons made together.
        detectable: The true difference that both tests detect with 80 % power.
        verdict: ``A``, ``B``, ``no difference shown`` or ``too few seeds``.
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
    p_seeds: float | None
    examples: int | None
    p_examples: float | None
    p_mcnemar: list[float]
    p: float | None
    p_holm: float | None
    detectable: float | None
    verdict: str
    remarks: list[str]

    def as_dict(self) -> dict[str, Any]:
        """Return the comparison as plain values."""
        return asdict(self)


def compare(
    records: Iterable[Record],
    a: str,
    b: str,
    task: str | None = None,
    protocol: str | None = None,
    paths: Callable[[str], Collection[Path]] = lambda text: (),
) -> tuple[str, str, list[Comparison]]:
    """Compare two variants on every task and protocol that both finished.

    Args:
        records: The records to search.
        a: The name of variant A, as described in ``find_variant``.
        b: The name of variant B.
        task: The task to compare on, by default all.
        protocol: The protocol to compare under, by default all that are ranked.
        paths: A function that returns the paths of the records that a text names, empty if the text names a variant.

    Returns:
        The full names of A and B, and one comparison per task, task version, protocol and data.

    Raises:
        UserError: If a name matches no variant or more than one, or if the variants share no task and protocol.
    """
    chosen = select(list(records), task, protocol)
    name_a, all_a = find_variant(chosen, a, "A", paths(a))
    name_b, all_b = find_variant(chosen, b, "B", paths(b))
    if name_a == name_b:
        raise UserError(f"A={a} B={b}: both are the same variant {name_a}; choose two variants")
    places_a, places_b = _by_place(all_a, name_a), _by_place(all_b, name_b)
    shared = sorted(places_a.keys() & places_b.keys(), key=lambda place: tuple(map(str, place)))
    if not shared:
        where = [" and ".join(sorted({f"{p[0]} · {p[2]}" for p in places})) for places in (places_a, places_b)]
        raise UserError(
            f"A={a} B={b}: the variants have no finished task and protocol in common "
            f"({name_a}: {where[0] or 'nothing'}; {name_b}: {where[1] or 'nothing'})"
        )
    found = [_compare(place, places_a[place], places_b[place]) for place in shared]
    return name_a, name_b, _correct_for_multiple_tests(found)


def _by_place(records: Sequence[Record], name: str) -> dict[Place, dict[int, Record]]:
    """Group finished records by task, task version, protocol and missing data, then by seed."""
    places: dict[Place, dict[int, Record]] = {}
    for record in sorted(records, key=lambda record: record.key):
        if record.status != "ok" or record.score() is None:
            continue
        version = record.data["version"] if record.data else None
        seeds = places.setdefault((record.key.task, version, record.key.protocol, missing_data(record)), {})
        first = next(iter(seeds.values()), record)
        if first.key.hash != record.key.hash:
            raise UserError(
                f"{name}: matches several rows with different hashes on {record.key.task}; "
                f"add #{first.key.hash} or #{record.key.hash}"
            )
        # The same seed on another machine is the same experiment; the first in sorted order is used.
        seeds.setdefault(record.key.seed, record)
    return places


def _compare(place: Place, a: Mapping[int, Record], b: Mapping[int, Record]) -> Comparison:
    task, version, protocol, missing = place
    shared = sorted(a.keys() & b.keys())
    paired = len(shared) >= MIN_SEEDS or min(len(a), len(b)) < MIN_SEEDS
    scores_a, scores_b = (_scores(side, shared if paired and shared else sorted(side)) for side in (a, b))
    first = next(iter(a.values()))
    pairs = pair(a, b, shared) if paired else "the seeds differ"
    remarks = [f"no test over examples: {pairs}"] if isinstance(pairs, str) else []
    if {tuple(r.protocol_modified) for r in a.values()} != {tuple(r.protocol_modified) for r in b.values()}:
        remarks.append("the protocol keys modified for A and B differ, so the variants differ in more than the model")
    base = Comparison(
        task=task, task_version=version, protocol=protocol, data_lacks=missing, metric=str(first.metric),
        seeds_a=sorted(a), seeds_b=sorted(b), shared_seeds=shared, score_a=_mean(scores_a), score_b=_mean(scores_b),
        difference=_mean(scores_a) - _mean(scores_b), low=None, high=None, unit="seeds", paired=paired,
        p_seeds=None, examples=None, p_examples=None, p_mcnemar=[], p=None, p_holm=None, detectable=None,
        verdict="too few seeds", remarks=remarks,
    )  # fmt: skip
    over_seeds = _over_seeds(scores_a, scores_b, paired and bool(shared))
    over_examples = {} if isinstance(pairs, str) else _over_examples(pairs)
    detectables = [side.pop("detectable") for side in (over_seeds, over_examples) if "detectable" in side]
    # The interval over examples is used if there is none over seeds.
    known = {**over_examples, **over_seeds}
    enough = min(len(scores_a), len(scores_b)) >= MIN_SEEDS
    p = max(known[name] for name in ("p_seeds", "p_examples") if name in known) if enough else None
    return replace(base, **known, p=p, detectable=max(detectables) if enough else None)


def _over_seeds(a: Sequence[float], b: Sequence[float], paired: bool) -> dict[str, Any]:
    """Return interval, p-value and detectable difference over seeds, empty with fewer than two seeds."""
    import numpy as np
    from scipy.stats import t

    if min(len(a), len(b)) < 2:
        return {}
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
        p = float(welch_t([_mean(a), _mean(b)], deviations, [len(a), len(b)])[0, 1])
        half = float(t.isf(LEVEL / 2, dof)) * error
        low, high = _mean(a) - _mean(b) - half, _mean(a) - _mean(b) + half
    return {
        "low": low,
        "high": high,
        "unit": "seeds",
        "p_seeds": p,
        "detectable": detectable_difference(error, dof),
    }


def _over_examples(pairs: Pairs) -> dict[str, Any]:
    """Return interval, p-values and detectable difference over test examples, averaged over seeds in each example."""
    means, scored = pairs.differences.mean(axis=0), pairs.scored
    low, high = bootstrap(means, scored, seed=0)
    total = float(scored.sum())
    overall = float(means.sum()) / total
    n = len(means)
    error = float(((means - overall * scored) ** 2).sum() * n / max(n - 1, 1)) ** 0.5 / total
    by_seed = [] if pairs.only_a is None or pairs.only_b is None else zip(pairs.only_a, pairs.only_b, strict=True)
    return {
        "low": low,
        "high": high,
        "unit": "examples",
        "examples": n,
        "p_examples": swap_test(pairs.differences.sum(axis=0)),
        "p_mcnemar": [mcnemar(int(only_a), int(only_b)) for only_a, only_b in by_seed],
        "detectable": detectable_difference(error, max(n - 1, 1)),
    }


def _correct_for_multiple_tests(found: Sequence[Comparison]) -> list[Comparison]:
    """Apply Holm's correction to all comparisons that have a p-value, and set their verdicts."""
    corrected = iter(holm([c.p for c in found if c.p is not None]).tolist())
    return [c if c.p is None else _with_verdict(c, next(corrected)) for c in found]


def _with_verdict(c: Comparison, p: float) -> Comparison:
    if p > LEVEL or c.difference == 0:
        return replace(c, p_holm=p, verdict="no difference shown")
    return replace(c, p_holm=p, verdict="A" if (c.difference > 0) == (c.metric == "accuracy") else "B")


def _scores(side: Mapping[int, Record], seeds: Sequence[int]) -> list[float]:
    return [score for seed in seeds if (score := side[seed].score()) is not None]


def _mean(values: Sequence[float]) -> float:
    return sum(values) / len(values)
