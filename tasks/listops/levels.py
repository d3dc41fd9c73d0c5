"""What a reader of the first levels of a ListOps tree sees.

A digit or operator is on level k if k operators contain it. The root is on level 0, and the deepest digits of a tree
whose depth is d are on level d − 1.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from lra_bench.data.columns import ListColumn
from lra_bench.data.compiled import compiled

from .trees import CLOSE, DEPTH, FIRST_OPERATOR, NO_DIGIT, SM, describe, evaluate

if TYPE_CHECKING:
    import datasets

SUMS, KINDS, LOWEST, HIGHEST, FIRST_VALUE = range(DEPTH + 1, DEPTH + 6)  # columns of read_levels() after describe()
NO_SUM, SUM_BELOW, SUM_AT_ROOT = range(3)  # values of SUMS
SUM_NAMES = {NO_SUM: "none", SUM_BELOW: "below the root", SUM_AT_ROOT: "at the root"}


@compiled
def _read_row(tokens: Any, operators: Any, arguments: Any, counts: Any, out: Any) -> None:
    out[SUMS], out[KINDS], out[LOWEST], out[HIGHEST] = NO_SUM, 0, NO_DIGIT, NO_DIGIT
    level = 0
    for token in tokens:
        if token < FIRST_OPERATOR:
            if level == 2:
                digit = token - 1
                out[LOWEST] = min(out[LOWEST], digit)
                out[HIGHEST] = digit if out[HIGHEST] == NO_DIGIT else max(out[HIGHEST], digit)
        elif token < CLOSE:
            kind = np.int64(token) - FIRST_OPERATOR
            if kind == SM:
                out[SUMS] = SUM_AT_ROOT if level == 0 else max(out[SUMS], SUM_BELOW)
            if level == 1:
                out[KINDS] |= 1 << kind
            level += 1
        else:
            level -= 1
    for levels in range(1, len(out) - FIRST_VALUE + 1):
        out[FIRST_VALUE + levels - 1] = _value_of_levels(tokens, levels, operators, arguments, counts)


@compiled
def _value_of_levels(tokens: Any, levels: int, operators: Any, arguments: Any, counts: Any) -> Any:
    """Return the value of a tree over its digits on the first ``levels`` levels."""
    if len(tokens) == 1:
        return np.int64(tokens[0]) - 1
    value, level = NO_DIGIT, 0
    for token in tokens:
        if token < FIRST_OPERATOR:
            if level <= levels:
                counts[level - 1, token - 1] += 1
                arguments[level - 1] += 1
        elif token < CLOSE:
            if level < levels:
                operators[level] = token - FIRST_OPERATOR
                arguments[level] = 0
                counts[level, :] = 0
            level += 1
        else:
            level -= 1
            if level < levels and arguments[level] > 0:
                value = evaluate(operators[level], counts[level], arguments[level])
                if level > 0:
                    counts[level - 1, value] += 1
                    arguments[level - 1] += 1
            elif level == 0:
                value = NO_DIGIT
    return value


@compiled
def _read(values: Any, starts: Any, lengths: Any, out: Any) -> None:
    room = out.shape[1] - FIRST_VALUE
    operators, arguments = np.zeros(room, dtype=np.int64), np.zeros(room, dtype=np.int64)
    counts = np.zeros((room, 10), dtype=np.int64)
    for row in range(len(lengths)):
        _read_row(values[starts[row] : starts[row] + lengths[row]], operators, arguments, counts, out[row])


def read_levels(
    values: NDArray[np.uint8], starts: NDArray[np.int64], lengths: NDArray[np.int64], levels: int
) -> NDArray[np.int64]:
    """Return properties of valid trees and of their first levels.

    Args:
        values: Tokens of all trees.
        starts: Index in ``values`` of the first token of each tree, (R,).
        lengths: Length of each tree, (R,).
        levels: Largest number of levels to evaluate.

    Returns:
        (R, 9 + ``levels``): the columns of ``describe``; where sums modulo 10 occur (a key of ``SUM_NAMES``); the kinds
        of the operators directly below the root, as a sum of powers of two; the smallest and the largest digit on
        level 2, ``NO_DIGIT`` if there is none; and for k = 1, 2, … the value of the tree without what lies deeper than
        level k. Operators without arguments are left out, too; if no digit remains, the value is ``NO_DIGIT``.
    """
    out = np.empty((len(starts), FIRST_VALUE + levels), dtype=np.int64)
    out[:, :SUMS] = describe(values, starts, lengths)
    _read(values, starts, lengths, out)
    return out


def read_rows(dataset: datasets.Dataset, levels: int) -> NDArray[np.int64]:
    """Return ``read_levels`` of every example of a data set."""
    column = ListColumn(dataset, "tokens")
    table = np.empty((len(column), FIRST_VALUE + levels), dtype=np.int64)
    for rows, values, starts, lengths in column.by_chunk():
        table[rows] = read_levels(values, starts, lengths, levels)
    return table
