"""What prepared document pairs are held against."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np

from lra_bench.contracts import UserError
from lra_bench.data.columns import Integers

# Pairs were drawn without a look at those already there; nobody has counted repetitions in the release, so that
# few are let pass and many, as of files mixed up, are not.
LARGEST_REPEATED_SHARE = 0.01


def check_pairs(split: str, papers: Mapping[str, Integers]) -> None:
    """Raise ``UserError`` where too many pairs of a split occur twice or in another one; ``papers`` are (R, 2) each.

    The order of the two papers does not count. Single papers recur in all splits.
    """
    pairs = {name: _unordered(both) for name, both in papers.items()}
    own = pairs[split]
    repeated = {"itself": len(own) - len(np.unique(own))}
    for other in pairs.keys() - {split}:
        repeated[other] = int(np.isin(own, pairs[other]).sum())
    for where, count in repeated.items():
        if count > LARGEST_REPEATED_SHARE * len(own):
            raise UserError(
                f"retrieval {split}: {count:,} of {len(own):,} pairs occur "
                f"{'more than once' if where == 'itself' else f'in {where} too'}; look at task.source"
            )


def _unordered(papers: Integers) -> Integers:
    """One number for each pair of papers, whichever comes first."""
    low, high = np.sort(papers, axis=1).T.astype(np.uint64)
    # An odd factor (the golden ratio's) keeps pairs apart that a plain sum would mix up; overflow wraps.
    return (low * np.uint64(0x9E3779B97F4A7C15) ^ high).astype(np.int64)
