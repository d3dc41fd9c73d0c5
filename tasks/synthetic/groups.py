"""Multiplication tables of finite groups."""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Sequence
from functools import cache, reduce
from itertools import permutations
from typing import TYPE_CHECKING, Any

from lra_bench.contracts import UserError

if TYPE_CHECKING:
    from numpy.typing import NDArray

MOST_ELEMENTS = 720
"""Largest order of a group: that of the permutations of six letters."""

SIZES: dict[str, tuple[int, Callable[[int], int]]] = {
    "z": (2, lambda n: n),
    "d": (2, lambda n: 2 * n),
    "a": (3, lambda n: math.factorial(n) // 2),
    "s": (2, math.factorial),
}
"""For the letter of each family of groups: the smallest n, and a function that returns the order from n."""


def order(group: str | Sequence[Sequence[int]]) -> int:
    """Return the number of elements of a group, given as for ``multiplication_table``.

    Raises ``UserError`` if the name is unknown, or if the order is below 2 or above ``MOST_ELEMENTS``.
    """
    factors = [_factor(name, group) for name in group.split("*")] if isinstance(group, str) else []
    sizes = [8 if family == "q" else SIZES[family][1](min(n, MOST_ELEMENTS)) for family, n in factors]
    size = math.prod(sizes) if isinstance(group, str) else len(group)
    if not 2 <= size <= MOST_ELEMENTS:
        name = group if isinstance(group, str) else "the table"
        count = f"{size:,}" if size < 10**9 else "too many"
        raise UserError(f"task.group: {name} has {count} elements; choose a group of 2 to {MOST_ELEMENTS}")
    return size


def multiplication_table(group: str | Sequence[Sequence[int]]) -> NDArray[Any]:
    """Return the table (G, G) of a group; the entry of (a, b) is the number of the product ab, and 0 is the identity.

    Args:
        group: ``z<n>``: the cyclic group of order n. ``d<n>``: the dihedral group of order 2n; element k is the
            rotation by k of n, element n + k this rotation after a reflection. ``q8``: the quaternions; element k is
            i^k, and element 4 + k is i^k j. ``s<n>``, ``a<n>``: all, or the even, permutations of n letters in
            lexicographic order, where ab is the permutation that applies b first. Names joined by ``*``: their direct
            product; element a * order(B) + b is the pair of a and b. Or the table itself, as lists of whole numbers.

    Returns:
        The table.

    Raises:
        UserError: If the name is unknown, or the table is not that of a group, or its identity is not 0.
    """
    size = order(group)
    if not isinstance(group, str):
        return _checked(group, size)
    return reduce(_product, (_table(*_factor(name, group)) for name in group.split("*")))


def _factor(name: str, group: str) -> tuple[str, int]:
    """Split a name such as ``z5`` into its letter and its number."""
    match = re.fullmatch(r"([zdas])([1-9]\d{0,3})|(q)(8)", name)
    letter, digits = filter(None, match.groups()) if match else ("", "0")
    if not match or (letter in SIZES and int(digits) < SIZES[letter][0]):
        raise UserError(
            f"task.group={group}: is not a known group; choose z2, z3, …, d2, d3, …, q8, s2, s3, …, a3, a4, …, several "
            f"joined by * such as z2*z2, or give a multiplication table"
        )
    return letter, int(digits)


@cache
def _table(family: str, n: int) -> NDArray[Any]:
    import numpy as np

    if family in "sa":
        return _permutations(n, even=family == "a")
    if family == "z":
        return np.add.outer(np.arange(n), np.arange(n)) % n
    # Rotations a^k, and a^k x with x a = a^-1 x, where x² is 1 in dihedral groups and a² in the quaternions.
    turns, square = (n, 0) if family == "d" else (4, 2)
    k, reflected = np.tile(np.arange(turns), 2), np.repeat([0, 1], turns)
    other_k, other = k[None, :], reflected[None, :]
    k, reflected = k[:, None], reflected[:, None]
    product = (k + np.where(reflected, -other_k, other_k) + square * (reflected & other)) % turns
    return np.asarray(product + turns * (reflected ^ other))


def _permutations(letters: int, even: bool) -> NDArray[Any]:
    """Return the table of the permutations of ``letters`` letters, or only of the even ones."""
    import numpy as np

    elements = np.array([each for each in permutations(range(letters)) if not (even and _inversions(each) % 2)])
    code = letters ** np.arange(letters)[::-1]
    return np.searchsorted(elements @ code, elements[:, elements] @ code)


def _product(first: NDArray[Any], second: NDArray[Any]) -> NDArray[Any]:
    """Return the table of the direct product of two groups."""
    import numpy as np

    size = len(first) * len(second)
    pairs = first[:, None, :, None] * len(second) + second[None, :, None, :]
    return np.asarray(pairs.reshape(size, size))


def _checked(rows: Sequence[Any], size: int) -> NDArray[Any]:
    """Return a multiplication table as an array; raises ``UserError`` with the first property of groups it lacks."""
    import numpy as np

    for number, row in enumerate(rows):
        if isinstance(row, str) or not isinstance(row, Sequence) or len(row) != size:
            raise UserError(f"task.group: row {number} of the table must be a list of {size} elements, as many as rows")
        for column, entry in enumerate(row):
            if isinstance(entry, bool) or not isinstance(entry, int) or not 0 <= entry < size:
                raise UserError(
                    f"task.group: the table is not closed: the product of {number} and {column} is {entry}; use the "
                    f"elements 0 to {size - 1}"
                )
    table, everything = np.array(rows, dtype=np.int64), np.arange(size)
    units = np.flatnonzero((table == everything).all(axis=1) & (table == everything[:, None]).all(axis=0))
    if not len(units):
        raise UserError("task.group: the table has no identity, an element e with ea = ae = a for all elements a")
    if units[0]:
        raise UserError(f"task.group: the identity of the table is {units[0]}; renumber the elements so that it is 0")
    for a in range(size):
        different = np.argwhere(table[table[a]] != table[a][table])
        if len(different):
            b, c = different[0]
            raise UserError(f"task.group: the table is not associative: ({a}·{b})·{c} is not {a}·({b}·{c}); correct it")
    if len(lacking := np.flatnonzero((table != 0).all(axis=1))):
        raise UserError(f"task.group: element {lacking[0]} of the table has no inverse; a group needs one for each")
    return table


def _inversions(permutation: tuple[int, ...]) -> int:
    """Return the number of pairs that a permutation puts into the opposite order."""
    return sum(later < earlier for place, earlier in enumerate(permutation) for later in permutation[place + 1 :])
