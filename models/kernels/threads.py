"""Compiled loops side by side, on as many threads as torch's operators use."""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from functools import lru_cache
from itertools import pairwise
from typing import TypeVar

import torch

Job = TypeVar("Job")

WIDTH = 128  # channels of a block, whose rows are to stay in the cache
LANES = 32  # channels that a loop computes in one go, of which a block wants whole ones
ALONE = 1 << 16  # numbers that one thread computes in less time than it takes to wake another


@dataclass(frozen=True)
class Block:
    """Channels ``first`` to ``last`` of one row of the batch, all of one group; ``part`` counts those of a group."""

    row: int
    group: int
    part: int
    first: int
    last: int

    @property
    def channels(self) -> slice:
        """Where its channels are."""
        return slice(self.first, self.last)


def parts(batch: int, channels: int, groups: int = 1) -> int:
    """How many blocks the channels of a group make: as few as are not too wide, or more where threads were idle."""
    own = channels // groups
    return max(-(-own // WIDTH), min(-(-torch.get_num_threads() // (batch * groups)), own // LANES))


def block_edges(channels: int, count: int) -> list[int]:
    """Where ``count`` blocks of channels begin and end, as equal as whole lanes may be."""
    lanes, count = -(-channels // LANES), max(count, 1)
    return [min(channels, LANES * (lanes * part // count)) for part in range(count + 1)]


def blocks(batch: int, channels: int, groups: int, count: int) -> list[Block]:
    """All blocks, ``count`` of each group."""
    own = channels // groups
    return [
        Block(row, group, part, group * own + first, group * own + last)
        for row in range(batch)
        for group in range(groups)
        for part, (first, last) in enumerate(pairwise(block_edges(own, count)))
    ]


def side_by_side(run: Callable[[Job], None], jobs: Sequence[Job], numbers: int) -> None:
    """``run`` of every job, in no order, which together compute so many ``numbers``.

    On several threads where these are not too few; worth it where ``run`` lets go of the interpreter, as compiled
    loops do.
    """
    helpers = min(torch.get_num_threads(), len(jobs), 1 + numbers // ALONE) - 1
    left = iter(jobs)

    def work() -> None:
        for job in left:  # one by one from a common list, so that no thread waits for a slow one
            run(job)

    waiting = [_pool(os.getpid(), torch.get_num_threads()).submit(work) for _ in range(helpers)]
    work()
    for helper in waiting:
        helper.result()


@lru_cache(maxsize=1)
def _pool(process: int, threads: int) -> ThreadPoolExecutor:
    """Threads of this process: those of the one that it was forked from are not there."""
    return ThreadPoolExecutor(threads, f"loops-{process}")
