"""Time and peak memory of a pair at one length, each in a fresh process, and what went wrong."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict
from typing import Any

from lra_bench.profiling.worker_pool import run_worker
from lra_bench.runtime.memory import KEEPING_NOTHING

from .pair import Pair, Sizes
from .table import WHOSE, Row

PATIENCE_SECONDS = 300.0


def measure(pair: Pair, sizes: Sizes, blocks: int, threads: int) -> Row:
    """The row of ``pair``; where its peer fails, ours is measured all the same."""
    seconds, failure = times(pair, sizes, WHOSE, blocks, threads)
    if failure:
        seconds, again = times(pair, sizes, ("ours", "floor"), blocks, threads)
        failure = again or failure
    peaks = {whose: peak(pair, sizes, whose, threads) for whose in seconds}
    return Row(pair, sizes, seconds, peaks, failure)


def times(
    pair: Pair, sizes: Sizes, contenders: Sequence[str], blocks: int, threads: int
) -> tuple[dict[str, list[float]], str]:
    """Seconds of a step in each block of each contender, or who failed and why."""
    answers, ending = _ask(pair, sizes, contenders, blocks, threads)
    for answer in answers:
        if "seconds" in answer:
            return answer["seconds"], ""
        whose, reason = answer["failed"]
        return {}, f"{whose}: {reason}"
    return {}, ": ".join(ending)


def peak(pair: Pair, sizes: Sizes, whose: str, threads: int) -> int | None:
    """Bytes by which a step makes resident memory grow, with an allocator that keeps nothing that was freed."""
    answers, _ = _ask(pair, sizes, [whose], 0, threads, KEEPING_NOTHING)
    return next((answer["peak"] for answer in answers if "peak" in answer), None)


def _ask(
    pair: Pair,
    sizes: Sizes,
    contenders: Sequence[str],
    blocks: int,
    threads: int,
    variables: dict[str, str] | None = None,
) -> tuple[list[dict[str, Any]], tuple[str, str]]:
    job = {
        "pair": pair.name,
        "sizes": asdict(sizes),
        "contenders": list(contenders),
        "blocks": blocks,
        "threads": threads,
    }
    return run_worker(job, PATIENCE_SECONDS, variables, "benchmarks.peers.worker")
