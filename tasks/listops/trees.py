"""ListOps trees as tokens: compiled generation, evaluation and description.

A tree is written as its operator, its arguments and a closing bracket. Token ids: 0 is padding, 1 to 10 are the digits
0 to 9, followed by ``[MIN``, ``[MAX``, ``[MED``, ``[SM`` and ``]``.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from lra_bench.data.columns import ListColumn
from lra_bench.data.compiled import compiled
from lra_bench.data.splitmix import STEP, mix

if TYPE_CHECKING:
    import datasets

SYMBOLS = ("0", "1", "2", "3", "4", "5", "6", "7", "8", "9", "[MIN", "[MAX", "[MED", "[SM", "]")
IDS = {symbol: number for number, symbol in enumerate(SYMBOLS, start=1)}
OPERATORS = ("MIN", "MAX", "MED", "SM")

FIRST_OPERATOR = IDS["[MIN"]
CLOSE = IDS["]"]
MIN, MAX, MED, SM = range(4)
LONE_DIGIT = 4  # root operator of a tree that is a single digit
ROOT_NAMES = {**dict(enumerate(OPERATORS)), LONE_DIGIT: "digit"}
NO_DIGIT = 10  # value of the digits of a root that has no digits among its arguments

LABEL, ROOT, ARITY, DIRECT_VALUE, DEPTH = range(5)  # columns of describe()
FAULTS = {
    -1: "it continues after its end",
    -2: "a bracket is not closed",
    -3: "an operator has no arguments",
    -4: "it contains an unknown symbol",
    -5: "a bracket is closed that was not opened",
    -6: "it is empty",
}

_LOW_BITS = np.uint64(0xFFFFFFFF)
_HALF = np.uint64(32)


@compiled
def draw(
    key: Any, low: int, high: int, max_depth: int, max_arguments: int, threshold: Any, values: Any, lengths: Any
) -> int:
    """Generate random trees with ``low < length < high``, and return the number of tokens written.

    A tree is generated from left to right. Each symbol uses 64 random bits: the upper 32 decide whether it is an
    operator, the lower 32 which operator with how many arguments, or which digit. The root is always an operator,
    because a single digit is shorter than any window. A tree is rejected as soon as its symbols and outstanding
    arguments reach ``high`` tokens.

    Args:
        key: Key of the stream.
        low: Lower bound of the length, exclusive.
        high: Upper bound of the length, exclusive.
        max_depth: Largest depth.
        max_arguments: Largest number of arguments.
        threshold: Probability that an argument is an operator, if ``max_depth`` allows it, times 2**32.
        values: Output with room for R * ``high`` tokens; the trees are stored consecutively.
        lengths: Output, (R,). Length of each tree.
    """
    counter = key
    kinds = np.uint64(len(OPERATORS) * (max_arguments - 1))
    outstanding = np.zeros(max_depth, dtype=np.int64)  # outstanding arguments of each open operator
    at = 0
    for row in range(len(lengths)):
        while True:
            counter += STEP
            kind = ((mix(counter) & _LOW_BITS) * kinds) >> _HALF
            values[at] = FIRST_OPERATOR + (kind & np.uint64(3))
            arguments = 2 + np.int64(kind >> np.uint64(2))
            end, level, outstanding[0] = at + 1, 0, arguments
            committed = 2 + arguments  # length if all outstanding arguments are digits: a lower bound
            while level >= 0:
                if outstanding[level] == 0:
                    values[end] = CLOSE
                    end += 1
                    level -= 1
                    continue
                outstanding[level] -= 1
                counter += STEP
                bits = mix(counter)
                if level + 2 < max_depth and (bits >> _HALF) < threshold:
                    kind = ((bits & _LOW_BITS) * kinds) >> _HALF
                    arguments = 2 + np.int64(kind >> np.uint64(2))
                    committed += 1 + arguments
                    if committed >= high:
                        break
                    level += 1
                    outstanding[level] = arguments
                    values[end] = FIRST_OPERATOR + (kind & np.uint64(3))
                else:
                    values[end] = 1 + (((bits & _LOW_BITS) * np.uint64(10)) >> _HALF)
                end += 1
            if low < committed < high:
                break
        lengths[row] = end - at
        at = end
    return at


@compiled
def evaluate(operator: int, counts: Any, arguments: int) -> int:
    """Return the value of an operator from the number of occurrences of each digit among its arguments, (10,)."""
    if operator == SM:
        total = 0
        for digit in range(10):
            total += digit * counts[digit]
        return total % 10
    # The median of an even number of arguments is the mean of the middle two, truncated to an integer.
    lower, upper = (arguments - 1) // 2, arguments // 2
    if operator == MIN:
        lower = upper = 0
    elif operator == MAX:
        lower = upper = arguments - 1
    seen, first = 0, -1
    for digit in range(10):
        seen += counts[digit]
        if first < 0 and seen > lower:
            first = digit
        if seen > upper:
            return (first + digit) // 2
    return -1


@compiled
def _describe_row(tokens: Any, operators: Any, arguments: Any, counts: Any, out: Any) -> None:
    """Compute one row of ``describe``; the three scratch arrays have room for one entry per open operator."""
    out[:] = 0
    if len(tokens) == 0:
        out[LABEL] = -6
        return
    if len(tokens) == 1 and 1 <= tokens[0] <= 10:
        out[LABEL], out[ROOT], out[DIRECT_VALUE], out[DEPTH] = tokens[0] - 1, LONE_DIGIT, tokens[0] - 1, 1
        return
    level = -1
    direct = np.zeros(10, dtype=np.int64)
    for place in range(len(tokens)):
        token = np.int64(tokens[place])
        if token < 1 or token > CLOSE:
            out[LABEL] = -4
            return
        if level < 0 and place > 0:
            out[LABEL] = -1
            return
        if token < FIRST_OPERATOR:
            if level < 0:
                out[LABEL] = -1
                return
            counts[level, token - 1] += 1
            arguments[level] += 1
            if level == 0:
                direct[token - 1] += 1
            continue
        if token < CLOSE:
            level += 1
            operators[level] = token - FIRST_OPERATOR
            arguments[level] = 0
            counts[level, :] = 0
            out[DEPTH] = max(out[DEPTH], level + 2)
            continue
        if level < 0:
            out[LABEL] = -5
            return
        if arguments[level] == 0:
            out[LABEL] = -3
            return
        value = evaluate(operators[level], counts[level], arguments[level])
        if level == 0:
            digits = direct.sum()
            out[LABEL], out[ROOT], out[ARITY] = value, operators[0], arguments[0]
            out[DIRECT_VALUE] = evaluate(operators[0], direct, digits) if digits > 0 else NO_DIGIT
        else:
            counts[level - 1, value] += 1
            arguments[level - 1] += 1
        level -= 1
    if level >= 0:
        out[LABEL] = -2


@compiled
def _describe(values: Any, starts: Any, lengths: Any, out: Any) -> None:
    room = 2
    for row in range(len(lengths)):
        room = max(room, lengths[row] + 1)
    operators = np.zeros(room, dtype=np.int64)
    arguments = np.zeros(room, dtype=np.int64)
    counts = np.zeros((room, 10), dtype=np.int64)
    for row in range(len(lengths)):
        _describe_row(values[starts[row] : starts[row] + lengths[row]], operators, arguments, counts, out[row])


def describe(values: NDArray[np.uint8], starts: NDArray[np.int64], lengths: NDArray[np.int64]) -> NDArray[np.int64]:
    """Evaluate trees.

    Args:
        values: Tokens of all trees.
        starts: Index in ``values`` of the first token of each tree, (R,).
        lengths: Length of each tree, (R,).

    Returns:
        (R, 5): value, root operator, root arity, value of the root over the digits directly below it, depth. The value
        of a sequence that is not a tree is negative, a key of ``FAULTS``. The depth of a digit is 1. If all arguments
        of the root are operators, the value of its digits is ``NO_DIGIT``; the root operator of a single digit is
        ``LONE_DIGIT``.
    """
    out = np.empty((len(starts), 5), dtype=np.int64)
    _describe(values, starts, lengths, out)
    return out


def describe_rows(dataset: datasets.Dataset) -> NDArray[np.int64]:
    """Return ``describe`` of every example of a data set, (R, 5)."""
    column = ListColumn(dataset, "tokens")
    table = np.empty((len(column), 5), dtype=np.int64)
    for rows, values, starts, lengths in column.by_chunk():
        table[rows] = describe(values, starts, lengths)
    return table


def explain(value: int, label: int) -> str:
    """Return why an example with ``label`` is invalid if its tree has ``value`` (negative: it is not a tree)."""
    return FAULTS[value] if value < 0 else f"its label is {label} but its value is {value}"
