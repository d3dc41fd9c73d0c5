"""Multiplication tables of finite groups of permutations."""

from __future__ import annotations

from functools import cache
from itertools import permutations
from typing import TYPE_CHECKING, Any

import numpy as np

if TYPE_CHECKING:
    from numpy.typing import NDArray


@cache
def multiplication_table(letters: int, even: bool) -> NDArray[Any]:
    """Return the table (G, G) of the permutations of ``letters`` letters, or only of the even ones.

    Permutations are numbered in lexicographic order, so 0 is the identity. The entry of (a, b) is the number of the
    product ab, the permutation that applies b first: (ab)(i) = a(b(i)).
    """
    elements = [each for each in permutations(range(letters)) if not (even and _inversions(each) % 2)]
    number = {element: index for index, element in enumerate(elements)}
    table = [[number[tuple(a[image] for image in b)] for b in elements] for a in elements]
    return np.array(table, dtype=np.int64)


def _inversions(permutation: tuple[int, ...]) -> int:
    """Return the number of pairs that a permutation puts into the opposite order."""
    return sum(later < earlier for place, earlier in enumerate(permutation) for later in permutation[place + 1 :])
