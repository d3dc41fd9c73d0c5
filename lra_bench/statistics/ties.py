"""Groups of rows of a ranking that do not differ significantly, with correction for multiple tests."""

from __future__ import annotations

from string import ascii_letters
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import ArrayLike


MOST_GROUPED = 40
"""Largest number of rows for which all groups are reported.

With more rows, or more groups than letters, only ties with the best row are reported.
"""


def holm(p_values: ArrayLike) -> np.ndarray:
    """Correct p-values for multiple testing: a difference is significant if its corrected value is at most the level.

    The probability of at least one false positive among all M tests is then at most the level. Holm 1979, Scand. J.
    Statist. 6. Returns an array of the same shape, (M,).
    """
    import numpy as np

    values = np.asarray(p_values, dtype=np.float64)
    order = np.argsort(values, kind="stable")
    steps = np.maximum.accumulate(values[order] * np.arange(len(values), 0, -1))
    corrected = np.empty_like(values)
    corrected[order] = np.minimum(steps, 1.0)
    return corrected


def tie_groups(separate: ArrayLike) -> list[str]:
    """Return the letters of each row: two rows differ significantly unless they share a letter.

    If there are more than ``MOST_GROUPED`` rows, or more groups than letters, only the first row and the rows tied with
    it have a letter, the same for all. Every other row then differs significantly from the first; other differences are
    not reported.

    Args:
        separate: Whether two rows differ significantly, (R, R), symmetric, best row first.

    Returns:
        One string of letters per row.
    """
    import numpy as np

    differ = np.asarray(separate, dtype=bool)
    letters = [""] * len(differ)
    if not len(differ):
        return letters
    tied = ~(differ | differ.T)
    groups = _groups(tied) if len(differ) <= MOST_GROUPED else []
    if not 0 < len(groups) <= len(ascii_letters):
        groups = [np.flatnonzero(tied[0])]
    for letter, members in zip(ascii_letters, groups, strict=False):
        for member in members:
            letters[member] += letter
    return letters


def _groups(tied: np.ndarray) -> list[np.ndarray]:
    """Return sets of mutually tied rows that together contain every tied pair.

    Each set begins with a row, or with the first tied pair that no set contains yet. Then rows that are tied with all
    members are added, in the order of the rows. ``tied`` is (k, k) bool, symmetric and true on the diagonal; the sets
    are sorted arrays of indices.
    """
    import numpy as np

    covered = np.zeros_like(tied)  # pairs that a set contains
    found = []
    for row in range(len(tied)):
        while (uncovered := np.flatnonzero(tied[row] & ~covered[row])).size:
            # A row that no set contains begins a set alone; otherwise a set begins with an uncovered pair.
            members = [row] if not covered[row, row] else [row, int(uncovered[0])]
            candidates = np.logical_and.reduce(tied[members])  # rows that are tied with all members
            candidates[members] = False
            while candidates.any():
                members.append(int(np.argmax(candidates)))
                candidates &= tied[members[-1]]
                candidates[members[-1]] = False
            covered[np.ix_(members, members)] = True
            found.append(np.asarray(sorted(members)))
    return found
