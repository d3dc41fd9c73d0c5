"""Distance of scored targets from the tokens that they repeat."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from lra_bench.contracts import NOT_SCORED
from lra_bench.data.compiled import compiled

if TYPE_CHECKING:
    from .rows import Block


@compiled
def _after_first(tokens: Any, rows: Any, places: Any, distances: Any) -> None:
    for target in range(len(rows)):
        row, place = rows[target], places[target]
        first = 0
        while tokens[row, first] != tokens[row, place]:
            first += 1
        distances[target] = place - first - 1


def distance_after_first(block: Block) -> NDArray[np.int64]:
    """Return the distance of each scored target from the token after the first occurrence of the token at the target.

    In tasks whose target is what followed the first occurrence of a key or marker, this is the distance from the source
    of the target.

    Args:
        block: Examples with tokens (R, N) and targets (R, N).

    Returns:
        Positions between source and target, (T,), in the order of rows and positions.
    """
    rows, places = np.nonzero(block.targets != NOT_SCORED)
    distances = np.empty(len(rows), dtype=np.int64)
    _after_first(block.tokens, rows, places, distances)
    return distances
