"""Parallel execution of compiled loops on as many threads as torch's operators use."""

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

WIDTH = 128  # channels of a block, so that its rows stay in the cache
LANES = 32  # channels that a vectorised loop computes at a time; blocks consist of whole lanes
SERIAL_NUMBERS = 1 << 16  # numbers that one thread computes in less time than it takes to wake another


@dataclass(frozen=True)
class Block:
    """Channels ``first`` to ``last`` of example ``row``, all of one group; ``part`` numbers the blocks of a group."""

    row: int
    group: int
    part: int
    first: int
    last: int

    @property
    def channels(self) -> slice:
        """The channels of the block as a slice."""
        return slice(self.first, self.last)


def blocks_per_group(batch: int, channels: int, groups: int = 1) -> int:
    """Return the number of blocks of a group of channels.

    It is the smallest number of blocks that are not too wide, or more if threads would be idle otherwise.
    """
    group_channels = channels // groups
    return max(
        -(-group_channels // WIDTH), min(-(-torch.get_num_threads() // (batch * groups)), group_channels // LANES)
    )


def block_edges(channels: int, count: int) -> list[int]:
    """Return the ``count`` + 1 edges of blocks of channels of nearly equal size, in whole lanes."""
    lanes, count = -(-channels // LANES), max(count, 1)
    return [min(channels, LANES * (lanes * part // count)) for part in range(count + 1)]


def blocks(batch: int, channels: int, groups: int, count: int) -> list[Block]:
    """Return all blocks of all examples and groups, ``count`` of each group."""
    group_channels = channels // groups
    return [
        Block(row, group, part, group * group_channels + first, group * group_channels + last)
        for row in range(batch)
        for group in range(groups)
        for part, (first, last) in enumerate(pairwise(block_edges(group_channels, count)))
    ]


def run_parallel(run: Callable[[Job], None], jobs: Sequence[Job], numbers: int) -> None:
    """Call ``run`` with every job, in no particular order, on several threads if the work is large enough.

    ``numbers`` is how many numbers all jobs compute together. ``run`` must release the interpreter lock to benefit, as
    compiled loops do. Exceptions of jobs are raised.
    """
    helpers = min(torch.get_num_threads(), len(jobs), 1 + numbers // SERIAL_NUMBERS) - 1
    remaining = iter(jobs)

    def work() -> None:
        for job in remaining:  # from a shared iterator, so that no thread waits for a slow one
            run(job)

    futures = [_pool(os.getpid(), torch.get_num_threads()).submit(work) for _ in range(helpers)]
    work()
    for future in futures:
        future.result()


@lru_cache(maxsize=1)
def _pool(process: int, threads: int) -> ThreadPoolExecutor:
    """Return the thread pool of this process; after a fork, the threads of the parent process do not exist."""
    return ThreadPoolExecutor(threads, f"loops-{process}")
