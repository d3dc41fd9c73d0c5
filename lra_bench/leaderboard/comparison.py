"""A against B: paired over seeds and over examples, corrected for the number of tasks, with what could be found."""

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
    """A against B on one task under one protocol; scores and differences (A minus B) in the metric's own unit.

    Scores are means over ``shared_seeds`` where the test is paired, else over each side's own.
    ``unit`` says over what ``low`` and ``high`` hold the mean difference 95 % of the time: seeds or examples.
    ``p_seeds`` is Student's, paired where both ran the same seeds (``paired``), else Welch's; ``p_examples`` swaps A
    and B in each test example, in all shared seeds at once; ``p_mcnemar`` has one per shared seed. ``p`` is the larger
    of the first two, since a claim about models must hold for other seeds and for other examples; ``p_holm`` corrects
    it for the number of comparisons made together. ``detectable`` is the true difference that both tests would have
    found with 80 % probability. ``verdict`` is ``A``, ``B``, ``no difference shown`` or ``too few seeds``.
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
        """Plain values."""
        return asdict(self)


def compare(
    records: Iterable[Record],
    a: str,
    b: str,
    task: str | None = None,
    protocol: str | None = None,
    paths: Callable[[str], Collection[Path]] = lambda text: (),
) -> tuple[str, str, list[Comparison]]:
    """The names of the variants that ``a`` and ``b`` mean, and their comparison on every task that both finished.

    ``paths`` gives the paths of the records that a text names, if it names records instead of a variant. Raises
    ``UserError`` where a name means no variant or several, or where the two share no task and protocol.
    """
    chosen = select(list(records), task, protocol)
    name_a, all_a = find_variant(chosen, a, "A", paths(a))
    name_b, all_b = find_variant(chosen, b, "B", paths(b))
    if name_a == name_b:
        raise UserError(f"A={a} B={b}: are the same variant, {name_a}; name two")
    places_a, places_b = _by_place(all_a, name_a), _by_place(all_b, name_b)
    shared = sorted(places_a.keys() & places_b.keys(), key=lambda place: tuple(map(str, place)))
    if not shared:
        where = [" and ".join(sorted({f"{p[0]} · {p[2]}" for p in places})) for places in (places_a, places_b)]
        raise UserError(
            f"A={a} B={b}: no task under one protocol was finished with both "
            f"({name_a}: {where[0] or 'nothing'}; {name_b}: {where[1] or 'nothing'})"
        )
    found = [_compare(place, places_a[place], places_b[place]) for place in shared]
    return name_a, name_b, _corrected(found)


def _by_place(records: Sequence[Record], name: str) -> dict[Place, dict[int, Record]]:
    """Finished records by task, version, protocol and what the data lacks, then by seed."""
    places: dict[Place, dict[int, Record]] = {}
    for record in sorted(records, key=lambda record: record.key):
        if record.status != "ok" or record.score() is None:
            continue
        version = record.data["version"] if record.data else None
        seeds = places.setdefault((record.key.task, version, record.key.protocol, missing_data(record)), {})
        first = next(iter(seeds.values()), record)
        if first.key.hash != record.key.hash:
            raise UserError(
                f"{name}: has rows that differ in more than their name on {record.key.task}; "
                f"add #{first.key.hash} or #{record.key.hash}"
            )
        # The same seed on another machine is the same experiment: the first by name stands for it.
        seeds.setdefault(record.key.seed, record)
    return places


def _compare(place: Place, a: Mapping[int, Record], b: Mapping[int, Record]) -> Comparison:
    task, version, protocol, lacking = place
    shared = sorted(a.keys() & b.keys())
    paired = len(shared) >= MIN_SEEDS or min(len(a), len(b)) < MIN_SEEDS
    scores_a, scores_b = (_scores(side, shared if paired and shared else sorted(side)) for side in (a, b))
    first = next(iter(a.values()))
    pairs = pair(a, b, shared) if paired else "their seeds differ"
    remarks = [f"no test over examples: {pairs}"] if isinstance(pairs, str) else []
    if {tuple(r.protocol_modified) for r in a.values()} != {tuple(r.protocol_modified) for r in b.values()}:
        remarks.append("the protocol of one was changed, so they do not differ in the model alone")
    base = Comparison(
        task=task, task_version=version, protocol=protocol, data_lacks=lacking, metric=str(first.metric),
        seeds_a=sorted(a), seeds_b=sorted(b), shared_seeds=shared, score_a=_mean(scores_a), score_b=_mean(scores_b),
        difference=_mean(scores_a) - _mean(scores_b), low=None, high=None, unit="seeds", paired=paired,
        p_seeds=None, examples=None, p_examples=None, p_mcnemar=[], p=None, p_holm=None, detectable=None,
        verdict="too few seeds", remarks=remarks,
    )  # fmt: skip
    over_seeds = _over_seeds(scores_a, scores_b, paired and bool(shared))
    over_examples = {} if isinstance(pairs, str) else _over_examples(pairs)
    detectables = [side.pop("detectable") for side in (over_seeds, over_examples) if "detectable" in side]
    # The interval over examples stands in where there is none over seeds.
    known = {**over_examples, **over_seeds}
    enough = min(len(scores_a), len(scores_b)) >= MIN_SEEDS
    p = max(known[name] for name in ("p_seeds", "p_examples") if name in known) if enough else None
    return replace(base, **known, p=p, detectable=max(detectables) if enough else None)


def _over_seeds(a: Sequence[float], b: Sequence[float], paired: bool) -> dict[str, Any]:
    """Interval, p and detectable difference over seeds; nothing where there is but one."""
    import numpy as np
    from scipy.stats import t

    if min(len(a), len(b)) < 2:
        return {}
    if paired:
        differences = [x - y for x, y in zip(a, b, strict=True)]
        low, high = t_interval(differences)
        error, freedom = float(np.std(differences, ddof=1)) / len(differences) ** 0.5, float(len(differences) - 1)
        p = float(paired_t(differences))
    else:
        deviations = [float(np.std(side, ddof=1)) for side in (a, b)]
        spreads = [deviation**2 / len(side) for deviation, side in zip(deviations, (a, b), strict=True)]
        error = sum(spreads) ** 0.5
        parts = sum(spread**2 / (len(side) - 1) for spread, side in zip(spreads, (a, b), strict=True))
        freedom = error**4 / parts if parts else float(len(a) + len(b) - 2)
        p = float(welch_t([_mean(a), _mean(b)], deviations, [len(a), len(b)])[0, 1])
        half = float(t.isf(LEVEL / 2, freedom)) * error
        low, high = _mean(a) - _mean(b) - half, _mean(a) - _mean(b) + half
    return {
        "low": low,
        "high": high,
        "unit": "seeds",
        "p_seeds": p,
        "detectable": detectable_difference(error, freedom),
    }


def _over_examples(pairs: Pairs) -> dict[str, Any]:
    """Interval, p and detectable difference over test examples, seeds averaged within each."""
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


def _corrected(found: Sequence[Comparison]) -> list[Comparison]:
    """Holm's correction over all comparisons that have a p, and their verdicts."""
    corrected = iter(holm([c.p for c in found if c.p is not None]).tolist())
    return [c if c.p is None else _judged(c, next(corrected)) for c in found]


def _judged(c: Comparison, p: float) -> Comparison:
    if p > LEVEL or c.difference == 0:
        return replace(c, p_holm=p, verdict="no difference shown")
    return replace(c, p_holm=p, verdict="A" if (c.difference > 0) == (c.metric == "accuracy") else "B")


def _scores(side: Mapping[int, Record], seeds: Sequence[int]) -> list[float]:
    return [score for seed in seeds if (score := side[seed].score()) is not None]


def _mean(values: Sequence[float]) -> float:
    return sum(values) / len(values)
