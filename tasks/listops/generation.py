"""Streams of random ListOps examples: reproducible, distinct and, for other lengths, of equal difficulty."""

from __future__ import annotations

from collections import deque
from collections.abc import Generator, Set
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import closing
from itertools import count

import numpy as np
from numpy.typing import NDArray

from lra_bench.contracts import UserError
from lra_bench.data.cache import Advance
from lra_bench.data.examples import Examples, join
from lra_bench.runtime.processor import usable_cpus

from .lengths import Trees
from .trees import LABEL, LONE_DIGIT, ROOT, describe, draw

ROWS_PER_CHUNK = 256
DRAWS_PER_ROW = 200  # trees sampled per requested example before the search for rare kinds of trees ends


def draw_chunk(
    trees: Trees, seed: int, stream: int, chunk: int, rows: int = ROWS_PER_CHUNK
) -> tuple[Examples, NDArray[np.int64]]:
    """Return one chunk of a stream and the root operator of each example (R,): a pure function of the arguments."""
    low, high = trees.window
    key = np.random.SeedSequence([seed, stream, chunk]).generate_state(1, np.uint64)[0]
    threshold = np.uint64(round(trees.operator_probability * 2**32))
    values = np.empty(rows * high, dtype=np.uint8)
    lengths = np.empty(rows, dtype=np.int64)
    written = draw(key, low, high, trees.max_depth, trees.max_arguments, threshold, values, lengths)
    table = describe(values, np.cumsum(lengths) - lengths, lengths)
    return Examples(values[:written].copy(), lengths, table[:, LABEL].copy()), table[:, ROOT]


def chunks(trees: Trees, seed: int, stream: int) -> Generator[tuple[Examples, NDArray[np.int64]], None, None]:
    """Yield all chunks of a stream in order, generated ahead by one thread per CPU.

    The content does not depend on the number of threads.
    """
    workers = usable_cpus()
    ahead: deque[Future[tuple[Examples, NDArray[np.int64]]]] = deque()
    pool = ThreadPoolExecutor(workers)
    try:
        for chunk in count():
            ahead.append(pool.submit(draw_chunk, trees, seed, stream, chunk))
            if len(ahead) > 2 * workers:
                yield ahead.popleft().result()
    finally:
        pool.shutdown(wait=True, cancel_futures=True)


def distinct(trees: Trees, seed: int, start: int, stop: int, advance: Advance) -> list[Examples]:
    """Return examples ``start`` to ``stop`` (exclusive) of a stream, counted without duplicates.

    Args:
        trees: Distribution of the trees.
        seed: Seed of the stream.
        start: Index of the first example among the distinct examples.
        stop: Index after the last example.
        advance: Called with the number of examples found, for the progress bar.

    Returns:
        The examples, in parts.

    Raises:
        UserError: If there are too few different trees with lengths in the window.
    """
    seen: set[bytes] = set()
    kept: list[Examples] = []
    recent_totals: deque[int] = deque(maxlen=64)
    with closing(chunks(trees, seed, stream=0)) as drawn:
        for examples, _ in drawn:
            fresh = []
            for row, digest in enumerate(examples.digests()):
                if digest in seen or len(seen) == stop:
                    continue
                seen.add(digest)
                if len(seen) > start:
                    fresh.append(row)
            kept.append(examples.select(np.array(fresh, dtype=np.int64)))
            advance(len(fresh))
            if len(seen) == stop:
                break
            recent_totals.append(len(seen))
            if len(recent_totals) == 64 and recent_totals[-1] - recent_totals[0] < ROWS_PER_CHUNK // 2:
                raise UserError(
                    f"task.window={list(trees.window)}: only {len(seen):,} different trees were found, {stop:,} are "
                    "needed; widen task.window or lower task.rows"
                )
    return kept


def matched(
    trees: Trees, seed: int, stream: int, rows: int, wanted: NDArray[np.float64], avoid: Set[bytes], advance: Advance
) -> list[Examples]:
    """Return about ``rows`` distinct examples with a given joint distribution of root operator and label.

    Trees are generated until each pair of root operator and label occurs in the required number (rejection sampling, so
    that the distribution of trees given the pair is unchanged). If too few trees of a pair are found among
    ``DRAWS_PER_ROW`` trees per example, the result is smaller than ``rows``.

    Args:
        trees: Distribution of the trees.
        seed: Seed of the stream.
        stream: Number of the stream.
        rows: Number of examples.
        wanted: Joint distribution of root operator and label, (5, 10).
        avoid: Digests of examples that must not occur.
        advance: Called with the number of examples found, for the progress bar.

    Returns:
        The examples in random order, in one part.
    """
    missing = _apportion(wanted[:LONE_DIGIT], rows)
    seen: set[bytes] = set()
    kept: list[Examples] = []
    with closing(chunks(trees, seed, stream)) as drawn:
        for number, (examples, roots) in enumerate(drawn):
            if not missing.any() or number * ROWS_PER_CHUNK >= rows * DRAWS_PER_ROW:
                break
            fresh = []
            candidates = np.flatnonzero(missing[roots, examples.targets] > 0)
            chosen = examples.select(candidates)
            for row, digest in zip(candidates.tolist(), chosen.digests(), strict=True):
                pair = roots[row], examples.targets[row]
                if missing[pair] == 0 or digest in seen or digest in avoid:
                    continue
                missing[pair] -= 1
                seen.add(digest)
                fresh.append(row)
            kept.append(examples.select(np.array(fresh, dtype=np.int64)))
            advance(len(fresh))
    # Rare pairs are found last. After shuffling, every part of the examples is a random sample of them.
    joined = join(kept)
    order = np.random.Generator(np.random.PCG64(np.random.SeedSequence([seed, stream]))).permutation(len(joined))
    return [joined.select(order)]


def _apportion(wanted: NDArray[np.float64], rows: int) -> NDArray[np.int64]:
    """Return integers proportional to ``wanted`` that sum to ``rows``, by the largest-remainder method."""
    exact = wanted / wanted.sum() * rows
    counts = np.floor(exact).astype(np.int64)
    largest = np.argsort(-(exact - counts).ravel(), kind="stable")[: rows - counts.sum()]
    counts.ravel()[largest] += 1
    return counts
