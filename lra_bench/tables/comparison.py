"""Comparison of two variants named by the user, on every task and protocol that both finished, and its text."""

from __future__ import annotations

import os
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from itertools import product
from pathlib import Path

from lra_bench.contracts import UserError
from lra_bench.measurements.pretraining import objective_of
from lra_bench.progress import bar
from lra_bench.records.names import find_paths
from lra_bench.records.reference import load_records, reference_root
from lra_bench.records.schema import Record
from lra_bench.statistics.paired import CLAIM_SEEDS, EVERY_SEED_LEVEL, LEVEL, MIN_SEEDS

from .claims import Key, Place, Ranking, key_of, place_of, rankings
from .describe import lines
from .formatting import difference, p_value, score
from .naming import Names, explain_hidden, find_variant, select
from .pair_tests import EVERY_SEED, FLOOR_NOT_CLEARED, NOT_TESTED, TOO_FEW_SEEDS, A, B, Comparison, compare_pair

PRETRAINED_DIFFERENTLY = "the pretraining of A and B differs"
DIFFERENT_PROTOCOLS = "the protocol keys modified for A and B differ, so the variants differ in more than the model"


def compare_stored(
    a: str,
    b: str,
    results: str | os.PathLike[str] | None = None,
    reference: str | os.PathLike[str] | None = None,
    tasks: Names = None,
    protocol: str | None = None,
) -> tuple[str, str, list[Comparison]]:
    """Compare two variants of a results folder and the reference boards, see ``compare``; each may name a record."""
    root, records = load_records(results, reference)
    if not records:
        raise UserError(f"--results {root}: contains no records yet; run lra-bench bench first")
    models = {record.key.model for record in records}

    def paths(text: str) -> list[Path]:
        return [] if text in models else find_paths(text, root, reference_root(reference))

    return compare(records, a, b, tasks, protocol, paths)


def compare(
    records: Iterable[Record],
    a: str,
    b: str,
    tasks: Names = None,
    protocol: str | None = None,
    paths: Callable[[str], Collection[Path]] = lambda text: (),
) -> tuple[str, str, list[Comparison]]:
    """Compare two variants on every task and protocol that both finished.

    Args:
        records: The records to search.
        a: The name of variant A, as described in ``find_variant``.
        b: The name of variant B.
        tasks: The tasks to compare on, by default all.
        protocol: The protocol to compare under, by default all that are ranked.
        paths: A function that returns the paths of the records that a text names, empty if the text names a variant.

    Returns:
        The full names of A and B, and one comparison per task, task version, protocol and data.

    Raises:
        UserError: If a name matches no variant or several, if the variants share no task and protocol, or if all
            records are hidden.
    """
    records = list(records)
    if explanation := explain_hidden(records, tasks, protocol):
        raise UserError(explanation)
    chosen = select(records, tasks, protocol)
    name_a, all_a = find_variant(chosen, a, "A", paths(a))
    name_b, all_b = find_variant(chosen, b, "B", paths(b))
    if name_a == name_b:
        raise UserError(f"A={a} B={b}: both are the same variant {name_a}; choose two variants")
    found = rankings(chosen)
    places_a, places_b = _places(all_a, name_a, found), _places(all_b, name_b, found)
    shared = sorted(places_a.keys() & places_b.keys(), key=lambda place: tuple(map(str, place)))
    if not shared:
        where = [
            f"{name}: {' and '.join(sorted({f'{place[0]} · {place[2]}' for place in places})) or 'nothing'}"
            for name, places in ((name_a, places_a), (name_b, places_b))
        ]
        raise UserError(f"A={a} B={b}: the variants have no finished task and protocol in common ({'; '.join(where)})")
    comparisons = []
    with bar(len(shared), "comparing", unit="tasks") as advance:
        for place in shared:
            comparisons.append(_compare(places_a[place], places_b[place]))
            advance(1, str(place[0]))
    return name_a, name_b, comparisons


def _places(
    records: Sequence[Record], name: str, found: dict[Place, Ranking]
) -> dict[tuple[str | None, ...], dict[Key, Ranking]]:
    """Return the rows of a variant, one per board, for each task, task version, protocol and missing data."""
    places: dict[tuple[str | None, ...], dict[Key, Ranking]] = {}
    for record in sorted(records, key=lambda record: record.key):
        ranking, key = found.get(place_of(record)), key_of(record)
        if ranking is None or key not in ranking.entries:
            continue
        rows = places.setdefault(place_of(record)[:4], {})
        rows[key] = ranking
        first = next(iter(rows))
        if (first.model, first.hash) != (key.model, key.hash):
            raise UserError(
                f"{name}: matches several rows with different hashes on {record.key.task}; "
                f"add #{first.hash} or #{key.hash}"
            )
    return places


def _compare(a: Mapping[Key, Ranking], b: Mapping[Key, Ranking]) -> Comparison:
    """Compare two rows, preferably of the same board, and the user's own before those of boards."""
    key_a, key_b = min(product(a, b), key=lambda keys: (keys[0].board != keys[1].board, keys[0].board, keys[1].board))
    ranking, entry_a, entry_b = a[key_a], a[key_a].entries[key_a], b[key_b].entries[key_b]
    if ranking is b[key_b]:
        return ranking.compare(key_a, key_b)
    found = compare_pair(ranking.place[:4], entry_a, entry_b)
    same = objective_of(entry_a.first.config) == objective_of(entry_b.first.config)
    found.remarks.append(DIFFERENT_PROTOCOLS if same else PRETRAINED_DIFFERENTLY)
    return found


def report(a: str, b: str, comparisons: Sequence[Comparison]) -> str:
    """Return both names and, for each task, the scores, their difference, the tests and the verdict."""
    parts = [lines((("A", a), ("B", b)))]
    for c in comparisons:
        data = f" · data: {c.data_lacks}" if c.data_lacks else ""
        parts.append(f"{c.task} · {c.protocol}{data}\n{lines(_facts(c, a, b))}")
    return "\n".join(parts)


def _facts(c: Comparison, a: str, b: str) -> Iterator[tuple[str, str]]:
    used = [c.shared_seeds] * 2 if c.paired and c.shared_seeds else [c.seeds_a, c.seeds_b]
    yield "A", f"{score(c.score_a, c.metric)} over {_seeds(used[0])}"
    yield "B", f"{score(c.score_b, c.metric)} over {_seeds(used[1])}"
    unit = "" if c.low is None or c.high is None else f" (95 % confidence interval over {c.unit})"
    yield "A - B", difference(c.difference, c.metric, low=c.low, high=c.high) + unit
    if c.p_seeds is not None:
        kind = f"paired t-test, {_seeds(c.shared_seeds)}" if c.paired else "Welch's t-test, different seeds"
        yield "over seeds", f"{p_value(c.p_seeds)} ({kind})"
    if c.p_examples is not None and c.examples is not None:
        test = "paired permutation test" if c.metric == "accuracy" else "moving-block bootstrap of the windows"
        yield "over examples", f"{p_value(c.p_examples)} ({test}, {c.examples:,} examples)"
    if c.p_each_seed:
        values = ", ".join(p_value(p) for p in c.p_each_seed)
        yield "in each seed", f"{values} (seed {', '.join(map(str, c.shared_seeds))})"
    if c.p_holm is not None:
        what = "the larger" if c.p_seeds is not None and c.p_examples is not None else "this test"
        family = f", Holm-corrected for {c.together} comparisons with {c.against}" if c.together > 1 else ""
        yield "corrected", f"{p_value(c.p_holm)} ({what}{family})"
    if c.p is not None:
        bound = difference(c.detectable, c.metric).removeprefix("+") or "none on the scale"
        yield "detectable", f"{bound} (true difference detected with 80 % power, before the correction)"
    for remark in c.remarks:
        yield "note", remark
    yield "verdict", verdict(c, a, b)


def _seeds(seeds: Sequence[int]) -> str:
    return f"seed{'s' * (len(seeds) != 1)} {', '.join(map(str, seeds))}"


def verdict(c: Comparison, a: str, b: str) -> str:
    """Return the verdict of a comparison of ``a`` and ``b`` in words: which is better, or why nothing is claimed."""
    if c.verdict == FLOOR_NOT_CLEARED:
        both = not c.clears_floor_a and not c.clears_floor_b
        who = "neither exceeds" if both else f"{a if c.clears_floor_b else b} does not exceed"
        return f"no claim: {who} the strongest floor (a baseline without a model) in every seed"
    if c.verdict == TOO_FEW_SEEDS:
        count = len(c.shared_seeds) if c.paired else min(len(c.seeds_a), len(c.seeds_b))
        scope = ""
        if c.p_examples is not None:
            scope = f"; the test over examples applies to {'this run' if count == 1 else 'these runs'} of each only"
        # Without a test over examples, fewer than CLAIM_SEEDS seeds show nothing.
        needed = MIN_SEEDS if count < MIN_SEEDS else CLAIM_SEEDS
        option = ",".join(map(str, range(needed)))
        return f"no claim: {count} shared seed{'s' * (count != 1)}, {needed} are needed (seed={option} for both){scope}"
    if c.verdict == NOT_TESTED:
        return "no claim: windows of a text are not independent, and there is no test without the losses of each"
    better = {A: a, B: b}.get(c.verdict.removesuffix(EVERY_SEED))
    if better is None:
        return c.verdict
    if c.over_seeds:
        return f"{better} is better"
    return (
        f"{better} is better in each of {len(c.shared_seeds)} seeds (over examples, p < {LEVEL:g} in each and "
        f"p < {EVERY_SEED_LEVEL:g} together); a claim about other seeds needs {CLAIM_SEEDS}"
    )
