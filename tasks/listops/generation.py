"""Random ListOps examples as a stream: reproducible, distinct, and of equal difficulty where that is asked."""

from __future__ import annotations

import os
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

from .lengths import Trees
from .trees import LABEL, LONE_DIGIT, ROOT, describe, draw

ROWS_PER_CHUNK = 256
DRAWS_PER_ROW = 200  # after so many draws per row asked for, a rare kind of tree is given up


def draw_chunk(
    trees: Trees, seed: int, stream: int, chunk: int, rows: int = ROWS_PER_CHUNK
) -> tuple[Examples, NDArray[np.int64]]:
    """One chunk of a stream and the root operator of each row (R,): a pure function of its arguments."""
    low, high = trees.window
    key = np.random.SeedSequence([seed, stream, chunk]).generate_state(1, np.uint64)[0]
    threshold = np.uint64(round(trees.operator_probability * 2**32))
    values = np.empty(rows * high, dtype=np.uint8)
    lengths = np.empty(rows, dtype=np.int64)
    written = draw(key, low, high, trees.max_depth, trees.max_arguments, threshold, values, lengths)
    about = describe(values, np.cumsum(lengths) - lengths, lengths)
    return Examples(values[:written].copy(), lengths, about[:, LABEL].copy()), about[:, ROOT]


def chunks(trees: Trees, seed: int, stream: int) -> Generator[tuple[Examples, NDArray[np.int64]], None, None]:
    """All chunks of a stream in order, made ahead by one thread per processor; the content knows no threads."""
    workers = os.cpu_count() or 1
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
    """Examples ``start`` to ``stop`` of the stream of all different trees.

    Raises ``UserError`` where the window holds too few different trees.
    """
    seen: set[bytes] = set()
    kept: list[Examples] = []
    fresh_of_last: deque[int] = deque(maxlen=64)
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
            fresh_of_last.append(len(seen))
            if len(fresh_of_last) == 64 and fresh_of_last[-1] - fresh_of_last[0] < ROWS_PER_CHUNK // 2:
                raise UserError(
                    f"task.window={list(trees.window)}: holds hardly more than {len(seen):,} different trees and "
                    f"{stop:,} are needed; widen task.window or lower task.rows"
                )
    return kept


def matched(
    trees: Trees, seed: int, stream: int, rows: int, wanted: NDArray[np.float64], avoid: Set[bytes], advance: Advance
) -> list[Examples]:
    """About ``rows`` distinct examples whose root operators and labels are distributed as ``wanted`` (5, 10).

    Each of the pairs gets its rounded share, and trees are drawn until all are found: rejection, so that within a pair
    trees are as random as ever. A pair that does not turn up in ``DRAWS_PER_ROW`` draws per row stays short.
    """
    missing = _shares(wanted[:LONE_DIGIT], rows)
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
    # Rare pairs are found last; shuffled, any part of the rows is a fair sample of them.
    joined = join(kept)
    order = np.random.Generator(np.random.PCG64(np.random.SeedSequence([seed, stream]))).permutation(len(joined))
    return [joined.select(order)]


def _shares(wanted: NDArray[np.float64], rows: int) -> NDArray[np.int64]:
    """Whole numbers that sum to ``rows`` in proportion to ``wanted``, by largest remainder."""
    exact = wanted / wanted.sum() * rows
    shares = np.floor(exact).astype(np.int64)
    largest = np.argsort(-(exact - shares).ravel(), kind="stable")[: rows - shares.sum()]
    shares.ravel()[largest] += 1
    return shares
