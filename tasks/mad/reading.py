"""Reader of the examples of ``MadFuzzyRecall``, compiled."""

from __future__ import annotations

from typing import Any

import numpy as np

from lra_bench.contracts import NOT_SCORED
from lra_bench.data.compiled import compiled


@compiled
def _equal(tokens: Any, one: int, other: int, size: int) -> bool:
    """Return whether ``size`` tokens from two places on are equal."""
    return bool((tokens[one : one + size] == tokens[other : other + size]).all())


@compiled
def _end(tokens: Any, place: int, first: int, symbols: int) -> int:
    """Return the place after the run of different symbols of a kind that begins at ``place``."""
    end = place
    while end < len(tokens) and first <= tokens[end] - 1 < first + symbols:
        for other in range(place, end):
            if tokens[other] == tokens[end]:
                return end
        end += 1
    return end


@compiled
def read_fuzzy(
    keys: int, values: int, longest_key: int, longest_value: int, tokens: Any, targets: Any, valid: Any
) -> None:
    """Compute targets from tokens, and whether the examples are valid.

    Args:
        keys: Number of symbols of keys, which are the first ones.
        values: Number of symbols of values, which follow them; the symbol after them is the filler.
        longest_key: Number of symbols in the longest keys.
        longest_value: Number of symbols in the longest values.
        tokens: Tokens (R, N).
        targets: Output, (R, N).
        valid: Output, (R,).
    """
    length = tokens.shape[1]
    starts = np.empty((3, length), np.int64)  # of each key, of its value, and the end of the value
    for row in range(tokens.shape[0]):
        text = tokens[row]
        targets[row], valid[row] = NOT_SCORED, True
        place = shown = 0
        repeated = False
        while place < length and text[place] == 1 + keys + values:
            place += 1
        while place < length and valid[row]:
            middle = _end(text, place, 0, keys)
            end = _end(text, middle, keys, values)
            valid[row] = 0 < middle - place <= longest_key and 0 < end - middle <= longest_value
            entry = 0
            while entry < shown and not (
                starts[1, entry] - starts[0, entry] == middle - place
                and _equal(text, starts[0, entry], place, middle - place)
            ):
                entry += 1
            repeated = entry < shown
            if repeated:
                size = end - middle
                same = starts[2, entry] - starts[1, entry] == size and _equal(text, starts[1, entry], middle, size)
                valid[row] = valid[row] and same
                for target in range(middle, end):
                    targets[row, target - 1] = text[target] - 1
            else:
                starts[0, shown], starts[1, shown], starts[2, shown] = place, middle, end
                shown += 1
            place = end if end > place else length
        valid[row] = valid[row] and repeated
