"""Render a comparison of two variants as text."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from lra_bench.statistics.paired import MIN_SEEDS

from .comparison import Comparison
from .describe import lines
from .formatting import difference, score


def report(a: str, b: str, comparisons: Sequence[Comparison]) -> str:
    """Return both names and, for each task, the scores, their difference, the tests and the verdict."""
    parts = [lines((("A", a), ("B", b)))]
    for comparison in comparisons:
        parts.append(f"{_title(comparison)}\n{lines(_facts(comparison, a, b, len(comparisons)))}")
    return "\n".join(parts)


def _title(c: Comparison) -> str:
    return f"{c.task} · {c.protocol}" + (f" · data: {c.data_lacks}" if c.data_lacks else "")


def _facts(c: Comparison, a: str, b: str, together: int) -> Iterator[tuple[str, str]]:
    used = [c.shared_seeds] * 2 if c.paired and c.shared_seeds else [c.seeds_a, c.seeds_b]
    yield "A", f"{score(c.score_a, c.metric)} over {_seeds(used[0])}"
    yield "B", f"{score(c.score_b, c.metric)} over {_seeds(used[1])}"
    yield "A - B", _difference(c)
    if c.p_seeds is not None:
        kind = f"paired t-test, {_seeds(c.shared_seeds)}" if c.paired else "Welch's t-test, different seeds"
        yield "over seeds", f"p {c.p_seeds:.2g} ({kind})"
    if c.p_examples is not None and c.examples is not None:
        yield "over examples", f"p {c.p_examples:.2g} (paired permutation test, {c.examples:,} examples)"
    if c.p_mcnemar:
        values = ", ".join(f"{p:.2g}" for p in c.p_mcnemar)
        yield "McNemar", f"p {values} (seed {', '.join(map(str, c.shared_seeds))})"
    if c.p_holm is not None:
        yield "both", f"p {c.p_holm:.2g} (the larger, Holm-corrected for {together} comparison{'s' * (together != 1)})"
    if c.detectable is not None:
        bound = difference(c.detectable, c.metric).removeprefix("+")
        yield "detectable", f"{bound} (true difference that both tests detect with 80 % power)"
    for remark in c.remarks:
        yield "note", remark
    yield "verdict", _verdict(c, a, b)


def _difference(c: Comparison) -> str:
    text = difference(c.difference, c.metric)
    if c.low is None or c.high is None:
        return text
    low, high = (difference(end, c.metric).split(" ")[0] for end in (c.low, c.high))
    return f"{text} [{low}, {high}] (95 % confidence interval over {c.unit})"


def _seeds(seeds: Sequence[int]) -> str:
    return f"seed{'s' * (len(seeds) != 1)} {', '.join(map(str, seeds))}"


def _verdict(c: Comparison, a: str, b: str) -> str:
    if c.verdict == "too few seeds":
        count = len(c.shared_seeds) if c.paired else min(len(c.seeds_a), len(c.seeds_b))
        scope = ""
        if c.p_examples is not None:
            scope = f"; the test over examples applies to {'this run' if count == 1 else 'these runs'} of each only"
        return f"no claim: {count} shared seed{'s' * (count != 1)}, {MIN_SEEDS} are needed (seed=0,1,2 for both){scope}"
    return {"A": f"{a} is better", "B": f"{b} is better"}.get(c.verdict, c.verdict)
