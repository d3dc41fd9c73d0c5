"""Pathfinder pictures as a stream, drawn ahead on all processors."""

from __future__ import annotations

import os
from collections import deque
from collections.abc import Generator
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from .drawing import COLUMNS, draw
from .parameters import Parameters
from .stamps import Tables, tables

PIXELS_PER_CHUNK = 1 << 18


@dataclass(frozen=True)
class Pictures:
    """Some pictures of a stream: ``pixels`` (n, R, R) uint8 and ``about`` (n, 12), of which the columns are
    those of ``pathfinder_drawing.COLUMNS``.
    """

    pixels: NDArray[np.uint8]
    about: NDArray[np.int64]

    def __len__(self) -> int:
        return len(self.pixels)


def draw_pictures(parameters: Parameters, seed: int, first: int, count: int, border_rule: bool = True) -> Pictures:
    """Pictures ``first`` to ``first + count`` of the stream that parameters and seed make, on this thread.

    Without ``border_rule`` contours start in every direction, as they would have if the original's dilation took what
    lies outside for empty; such pictures are none of the published task.
    """
    size = parameters.resolution
    pixels = np.empty((count, size, size), dtype=np.uint8)
    about = np.empty((count, len(COLUMNS)), dtype=np.int64)
    every = _all_tables(parameters, border_rule)
    for number, of_margin in enumerate(every):
        draw(of_margin, number, len(every), _key(parameters, seed), first, pixels, about)
    return Pictures(pixels, about)


def pictures(
    parameters: Parameters, seed: int, first: int, count: int, workers: int | None = None
) -> Generator[Pictures, None, None]:
    """The same in chunks, in order, drawn ahead by ``workers`` threads, which change nothing in what is drawn."""
    workers = workers or os.cpu_count() or 1
    rows = max(1, PIXELS_PER_CHUNK // parameters.resolution**2)
    _all_tables(parameters, True)  # made here once, before the threads ask for them
    ahead: deque[Future[Pictures]] = deque()
    pool = ThreadPoolExecutor(workers)
    try:
        for start in range(first, first + count, rows):
            ahead.append(pool.submit(draw_pictures, parameters, seed, start, min(rows, first + count - start)))
            if len(ahead) > 2 * workers:
                yield ahead.popleft().result()
        while ahead:
            yield ahead.popleft().result()
    finally:
        pool.shutdown(wait=True, cancel_futures=True)


def _all_tables(parameters: Parameters, border_rule: bool) -> tuple[Tables, ...]:
    return tuple(tables(parameters, margin, border_rule) for margin in parameters.margins)


def _key(parameters: Parameters, seed: int) -> Any:
    return np.random.SeedSequence([seed, parameters.resolution, parameters.contour_length]).generate_state(
        1, np.uint64
    )[0]
