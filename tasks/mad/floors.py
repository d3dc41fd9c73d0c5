"""Floors of the recall tasks of MAD: values that were shown before the target."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from lra_bench.contracts import NOT_SCORED
from lra_bench.data.compiled import compiled

if TYPE_CHECKING:
    from ..synthetic.rows import Block


@compiled
def _count_earlier(tokens: Any, targets: Any, first: int, values: int, shown: Any, commonest: Any) -> None:
    counts = np.empty(values, np.int64)
    for row in range(tokens.shape[0]):
        counts[:] = 0
        for place in range(tokens.shape[1]):
            value, target = tokens[row, place] - 1 - first, targets[row, place] - first
            if 0 <= value < values:
                counts[value] += 1
            if targets[row, place] == NOT_SCORED or not 0 <= target < values or counts[target] == 0:
                continue
            shown[row, place] = counts[target] / counts.sum()
            if counts[target] == counts.max():
                commonest[row, place] = 1 / (counts == counts[target]).sum()


def earlier_values(block: Block, first: int, values: int) -> tuple[NDArray[Any], NDArray[Any]]:
    """Return the expected accuracy of two rules on each target, (R, N) each.

    Args:
        block: Examples with tokens (R, N) and targets (R, N).
        first: Symbol of the first value.
        values: Number of symbols of values.

    Returns:
        The accuracy of a random one of the tokens of values shown before the target, repeated ones as often as they
        are, and of the most frequent one, with ties broken randomly.
    """
    shown, commonest = np.zeros(block.targets.shape), np.zeros(block.targets.shape)
    _count_earlier(block.tokens, block.targets, first, values, shown, commonest)
    return shown, commonest
