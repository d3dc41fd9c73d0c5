"""Measure time and peak memory of a pair at one length, each in a fresh process, and report failures."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict
from typing import Any

from lra_bench.runtime.memory import RETURN_FREED_MEMORY
from lra_bench.runtime.subprocesses import WorkerFailed, WorkerProcess

from .pair import Pair, Sizes
from .table import CONTENDERS, Row

TIMEOUT_SECONDS = 300.0


def measure(pair: Pair, sizes: Sizes, blocks: int, threads: int) -> Row:
    """Measure the row of ``pair``; if the peer fails, the layer of lra-bench and the floor are still measured."""
    seconds, failure = times(pair, sizes, CONTENDERS, blocks, threads)
    if failure:
        seconds, second_failure = times(pair, sizes, ("ours", "floor"), blocks, threads)
        failure = second_failure or failure
    peaks = {contender: peak(pair, sizes, contender, threads) for contender in seconds}
    return Row(pair, sizes, seconds, peaks, failure)


def times(
    pair: Pair, sizes: Sizes, contenders: Sequence[str], blocks: int, threads: int
) -> tuple[dict[str, list[float]], str]:
    """Measure the seconds of a step in each block of each contender.

    Returns the seconds and ``""``, or an empty mapping and the contender that failed with the reason.
    """
    try:
        return _run(pair, sizes, contenders, blocks, threads)["seconds"], ""
    except WorkerFailed as failure:
        return {}, f"{failure.status}: {failure.reason}"


def peak(pair: Pair, sizes: Sizes, contender: str, threads: int) -> int | None:
    """Measure the growth of resident memory by a step, in bytes, with an allocator that returns freed memory."""
    try:
        return _run(pair, sizes, [contender], 0, threads, RETURN_FREED_MEMORY)["peak"]
    except WorkerFailed:
        return None


def _run(
    pair: Pair,
    sizes: Sizes,
    contenders: Sequence[str],
    blocks: int,
    threads: int,
    variables: dict[str, str] | None = None,
) -> dict[str, Any]:
    """Run a job in a fresh process and return its result; raises ``WorkerFailed`` with the contender as status."""
    job = {
        "pair": pair.name,
        "sizes": asdict(sizes),
        "contenders": list(contenders),
        "blocks": blocks,
        "threads": threads,
    }
    with WorkerProcess("benchmarks.peers.worker", job, variables) as worker:
        return worker.receive(TIMEOUT_SECONDS)
