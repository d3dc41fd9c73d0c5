"""Checks of prepared document pairs."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np

from lra_bench.contracts import UserError
from lra_bench.data.columns import Integers

# The pairs were generated without checking for duplicates, and their number in the release is not known. Few are
# accepted; many mean that files were mixed up.
LARGEST_REPEATED_SHARE = 0.01


def check_pairs(split: str, papers: Mapping[str, Integers]) -> None:
    """Raise ``UserError`` if more than 1 % of the pairs of a split occur twice or in another split.

    ``papers`` contains the digests of both papers of each pair by split, (R, 2). The order of the two papers is
    ignored. Single papers may occur in several splits.
    """
    pairs = {name: _unordered(both) for name, both in papers.items()}
    checked = pairs[split]
    repeated = {"itself": len(checked) - len(np.unique(checked))}
    for other in pairs.keys() - {split}:
        repeated[other] = int(np.isin(checked, pairs[other]).sum())
    for where, count in repeated.items():
        if count > LARGEST_REPEATED_SHARE * len(checked):
            raise UserError(
                f"retrieval {split}: {count:,} of {len(checked):,} pairs occur "
                f"{'more than once' if where == 'itself' else f'in {where} too'}; check task.source"
            )


def _unordered(papers: Integers) -> Integers:
    """Return one number for each pair of papers (R, 2), independent of their order: (R,)."""
    low, high = np.sort(papers, axis=1).T.astype(np.uint64)
    # The odd factor (of the golden ratio) avoids the collisions of a plain sum; overflow wraps.
    return (low * np.uint64(0x9E3779B97F4A7C15) ^ high).astype(np.int64)
