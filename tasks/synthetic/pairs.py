"""Minimal pairs of the synthetic tasks: examples that differ in one token and in targets."""

from __future__ import annotations

from collections.abc import Callable, Set
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from lra_bench.contracts import NOT_SCORED

from .rows import Block

TRIES = 20
"""Number of random examples per pair after which the search for pairs ends."""


class Decisive(NamedTuple):
    """Tokens of which one decides at least one target.

    Attributes:
        where: Whether each token of a block is one of them, (R, N).
        first: Smallest token id that they can have.
        ids: Number of ids that they can have, at least two.
    """

    where: NDArray[np.bool_]
    first: int
    ids: int


def draw_pairs(
    draw: Callable[[int, int], Block],
    decisive: Callable[[Block], Decisive],
    read: Callable[[Block], tuple[Block, NDArray[Any]]],
    pairs: int,
    seed: int,
    avoid: Set[bytes],
) -> Block:
    """Return pairs of examples that differ in one decisive token and in at least one target after it.

    Args:
        draw: Function that returns examples ``first`` to ``first + count`` of a stream.
        decisive: Function that returns the tokens of which one is changed.
        read: Function that returns a block with targets computed from the tokens, and whether each example is valid.
        pairs: Number of pairs; there are fewer if ``TRIES`` times as many examples do not yield them.
        seed: Seed of the changes.
        avoid: Digests of examples that must not occur.

    Returns:
        The members of pair i in rows 2 i and 2 i + 1. Only targets that differ within a pair are scored. The column
        ``distance`` is the distance of the first of them from the changed token.
    """
    seen, parts, count = set(avoid), [], 0
    for number in range(TRIES):
        block = draw(number * pairs, pairs)
        random = np.random.Generator(np.random.PCG64(np.random.SeedSequence([seed, number])))
        where, first, ids = decisive(block)
        at = np.arange(len(where)), np.where(where, random.random(where.shape), -1).argmax(axis=1)
        tokens = block.tokens.copy()
        tokens[at] = first + (tokens[at] - first + random.integers(1, ids, len(where))) % ids
        (one, valid), (two, also_valid) = (read(Block(each, block.targets)) for each in (block.tokens, tokens))
        differ = one.targets != two.targets
        distance = differ.argmax(axis=1) - at[1]
        digests = list(zip(one.digests(), two.digests(), strict=True))
        rows = []
        for row in np.flatnonzero(valid & also_valid & differ.any(axis=1) & (distance > 0)).tolist():
            if count < pairs and seen.isdisjoint(digests[row]):
                seen.update(digests[row])
                rows.append(row)
                count += 1
        both = np.stack([one.tokens, two.tokens], axis=1), np.stack([one.targets, two.targets], axis=1)
        parts.append((both[0][rows], np.where(differ[:, None], both[1], NOT_SCORED)[rows], distance[rows]))
        if count == pairs:
            break
    tokens, targets, distance = map(np.concatenate, zip(*parts, strict=True))
    width = tokens.shape[-1]
    return Block(tokens.reshape(-1, width), targets.reshape(-1, width), {"distance": np.repeat(distance, 2)})
