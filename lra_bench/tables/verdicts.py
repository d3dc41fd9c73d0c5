"""Render a comparison of two variants as text."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from lra_bench.statistics.paired import CLAIM_SEEDS, EVERY_SEED_LEVEL, LEVEL, MIN_SEEDS

from .describe import lines
from .formatting import difference, p_value, score
from .pair_tests import EVERY_SEED, FLOOR_NOT_CLEARED, NOT_TESTED, TOO_FEW_SEEDS, A, B, Comparison


def report(a: str, b: str, comparisons: Sequence[Comparison]) -> str:
    """Return both names and, for each task, the scores, their difference, the tests and the verdict."""
    parts = [lines((("A", a), ("B", b)))]
    for comparison in comparisons:
        parts.append(f"{_title(comparison)}\n{lines(_facts(comparison, a, b))}")
    return "\n".join(parts)


def _title(c: Comparison) -> str:
    return f"{c.task} · {c.protocol}" + (f" · data: {c.data_lacks}" if c.data_lacks else "")


def _facts(c: Comparison, a: str, b: str) -> Iterator[tuple[str, str]]:
    used = [c.shared_seeds] * 2 if c.paired and c.shared_seeds else [c.seeds_a, c.seeds_b]
    yield "A", f"{score(c.score_a, c.metric)} over {_seeds(used[0])}"
    yield "B", f"{score(c.score_b, c.metric)} over {_seeds(used[1])}"
    yield "A - B", _difference(c)
    if c.p_seeds is not None:
        kind = f"paired t-test, {_seeds(c.shared_seeds)}" if c.paired else "Welch's t-test, different seeds"
        yield "over seeds", f"{p_value(c.p_seeds)} ({kind})"
    if c.p_examples is not None and c.examples is not None:
        yield "over examples", f"{p_value(c.p_examples)} ({_test(c)}, {c.examples:,} examples)"
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
    yield "verdict", _verdict(c, a, b)


def _test(c: Comparison) -> str:
    return "paired permutation test" if c.metric == "accuracy" else "moving-block bootstrap of the windows"


def _difference(c: Comparison) -> str:
    text = difference(c.difference, c.metric)
    if c.low is None or c.high is None:
        return text
    low, high = (difference(end, c.metric).split(" ")[0] for end in (c.low, c.high))
    return f"{text} [{low}, {high}] (95 % confidence interval over {c.unit})"


def _seeds(seeds: Sequence[int]) -> str:
    return f"seed{'s' * (len(seeds) != 1)} {', '.join(map(str, seeds))}"


def _verdict(c: Comparison, a: str, b: str) -> str:
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
