"""Streams of Pathfinder pictures, drawn ahead by one thread per CPU."""

from __future__ import annotations

from collections import deque
from collections.abc import Generator
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from lra_bench.runtime.processor import usable_cpus

from .drawing import COLUMNS, draw
from .parameters import Parameters
from .stamps import Tables, tables

PIXELS_PER_CHUNK = 1 << 18


@dataclass(frozen=True)
class Pictures:
    """Pictures of a stream: ``pixels`` (n, R, R) uint8, and metadata ``about`` (n, 12) with ``drawing.COLUMNS``."""

    pixels: NDArray[np.uint8]
    about: NDArray[np.int64]

    def __len__(self) -> int:
        return len(self.pixels)


def draw_pictures(parameters: Parameters, seed: int, first: int, count: int, border_rule: bool = True) -> Pictures:
    """Draw pictures of the stream of given parameters and seed, in the calling thread.

    Args:
        parameters: Parameters of the pictures.
        seed: Seed of the stream.
        first: Number of the first picture.
        count: Number of pictures.
        border_rule: Whether the directions in which contours start are restricted as in the original (see
            ``stamps``). False treats the area outside the picture as empty; such pictures do not belong to the
            published task.

    Returns:
        The pictures.
    """
    size = parameters.resolution
    pixels = np.empty((count, size, size), dtype=np.uint8)
    about = np.empty((count, len(COLUMNS)), dtype=np.int64)
    tables_by_margin = _all_tables(parameters, border_rule)
    for number, margin_tables in enumerate(tables_by_margin):
        draw(margin_tables, number, len(tables_by_margin), _key(parameters, seed), first, pixels, about)
    return Pictures(pixels, about)


def pictures(
    parameters: Parameters, seed: int, first: int, count: int, workers: int | None = None
) -> Generator[Pictures, None, None]:
    """Yield pictures of the stream of given parameters and seed in chunks, in order, drawn ahead by threads.

    Args:
        parameters: Parameters of the pictures.
        seed: Seed of the stream.
        first: Number of the first picture.
        count: Number of pictures.
        workers: Number of threads, by default one per CPU; does not affect the pictures.
    """
    workers = workers or usable_cpus()
    rows = max(1, PIXELS_PER_CHUNK // parameters.resolution**2)
    _all_tables(parameters, True)  # computed once, before the threads use them
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
