"""Minimal pairs of ListOps: trees that differ in one digit and in their value."""

from __future__ import annotations

from collections.abc import Set
from contextlib import closing

import numpy as np

from lra_bench.data.examples import Examples, join

from .generation import DRAWS_PER_ROW, ROWS_PER_CHUNK, chunks
from .lengths import Trees
from .trees import CLOSE, FIRST_OPERATOR, LABEL, OPERATORS, describe

STREAM = 1
"""Number of the stream; those of the splits of other lengths begin at 4."""


def draw_pairs(trees: Trees, seed: int, pairs: int, levels: int, avoid: Set[bytes]) -> Examples:
    """Return pairs of trees that differ in one digit and in their value.

    Every level of the digit and every root operator has the same number of pairs, or fewer if a fixed number of random
    trees does not contain that many: the first member of a pair is a random tree, the digit a random one of those on
    its level, and the pair is kept if its members have different values.

    Args:
        trees: Distribution of the trees.
        seed: Seed of the stream.
        pairs: Number of pairs, divided evenly.
        levels: Largest number of operators that contain the digit.
        avoid: Digests of trees that must not occur.

    Returns:
        The trees, the members of pair i in rows 2 i and 2 i + 1, with the column ``level``.
    """
    missing = np.full((levels + 1, len(OPERATORS)), max(1, pairs // (levels * len(OPERATORS))))
    missing[0] = 0
    most, seen = pairs * DRAWS_PER_ROW // ROWS_PER_CHUNK, set(avoid)
    members: list[list[Examples]] = [[], []]
    kept: list[int] = []  # the level of each pair
    with closing(chunks(trees, seed, STREAM)) as drawn:
        for number, (examples, roots) in enumerate(drawn):
            if not missing.any() or number == most:
                break
            random = np.random.Generator(np.random.PCG64(np.random.SeedSequence([seed, STREAM, number])))
            for level in range(levels, 0, -1):  # digits on deep levels are rare and rarely change the value
                if not missing[level].any():
                    continue
                other = _other_digit(examples, level, random)
                rows = []
                for row, digests in enumerate(zip(examples.digests(), other.digests(), strict=True)):
                    changed = examples.targets[row] != other.targets[row]
                    if changed and missing[level, roots[row]] and seen.isdisjoint(digests):
                        missing[level, roots[row]] -= 1
                        seen.update(digests)
                        rows.append(row)
                for member, part in zip(members, (examples, other), strict=True):
                    member.append(part.select(np.array(rows, dtype=np.int64)))
                kept += [level] * len(rows)
    both, place = join([*members[0], *members[1]]), np.arange(len(kept))
    both = both.select(np.stack([place, len(kept) + place], axis=1).ravel())
    return Examples(both.values, both.lengths, both.targets, {"level": np.repeat(np.array(kept, dtype=np.int64), 2)})


def _other_digit(examples: Examples, level: int, random: np.random.Generator) -> Examples:
    """Return trees in which another digit replaces a random one of those on a level; trees without one are equal."""
    values, lengths = examples.values, examples.lengths
    opens = (values >= FIRST_OPERATOR) & (values < CLOSE)
    levels = np.cumsum(opens.astype(np.int64) - (values == CLOSE))
    shuffled = random.permutation(np.flatnonzero((levels == level) & (values < FIRST_OPERATOR)))
    row_of = np.repeat(np.arange(len(lengths)), lengths)
    positions = shuffled[np.unique(row_of[shuffled], return_index=True)[1]]
    changed = values.copy()
    changed[positions] = 1 + (values[positions] - 1 + random.integers(1, 10, len(positions))) % 10
    return Examples(changed, lengths, describe(changed, examples.starts, lengths)[:, LABEL])
