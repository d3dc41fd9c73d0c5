"""Groups of rows of a ranking that do not differ significantly, with correction for multiple tests."""

from __future__ import annotations

from string import ascii_letters
from typing import TYPE_CHECKING

from .paired import LEVEL, MIN_SEEDS, detectable_difference, welch_t

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import ArrayLike


MOST_GROUPED = 200
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


def tie_groups(mean: ArrayLike, deviation: ArrayLike, count: ArrayLike, level: float = LEVEL) -> list[str]:
    """Return the letters of each row: two rows with letters differ significantly unless they share a letter.

    All pairs are compared by Welch's test over seeds with Holm's correction. Rows with fewer than ``MIN_SEEDS`` seeds
    are not compared and have no letter. If more than ``MOST_GROUPED`` rows are compared, or there are more groups than
    letters, only the best compared row and the rows tied with it have a letter, the same for all. Every other compared
    row then differs significantly from the best; other differences are not reported.

    Args:
        mean: Mean score of each row, (R,), best first.
        deviation: Standard deviation over seeds of each row, with the denominator n - 1, (R,).
        count: Number of seeds of each row, (R,).
        level: Significance level.

    Returns:
        One string of letters per row, empty for a row without letters.
    """
    import numpy as np

    means, deviations, counts = (np.asarray(values, dtype=np.float64) for values in (mean, deviation, count))
    letters = [""] * len(counts)
    rows = np.flatnonzero(counts >= MIN_SEEDS)
    if not rows.size:
        return letters
    upper = np.triu_indices(len(rows), 1)
    separate = np.zeros((len(rows), len(rows)), dtype=bool)
    separate[upper] = holm(welch_t(means[rows], deviations[rows], counts[rows])[upper]) <= level
    tied = ~(separate | separate.T)
    groups = _groups(tied) if len(rows) <= MOST_GROUPED else []
    if not 0 < len(groups) <= len(ascii_letters):
        groups = [np.flatnonzero(tied[0])]
    for letter, members in zip(ascii_letters, groups, strict=False):
        for member in members:
            letters[rows[member]] += letter
    return letters


def smallest_detectable(deviation: ArrayLike, count: ArrayLike, level: float = LEVEL) -> float | None:
    """Return the smallest true difference of two rows that the tests of ``tie_groups`` find with a probability of 80 %.

    Computed for a hypothetical pair of rows: both have the median number of seeds of all compared rows, and their
    standard deviation is the pooled one, the root of the mean variance of all compared rows weighted by the number of
    seeds minus 1. The significance level is the strictest one of Holm's correction, ``level`` divided by the number of
    pairs, so the tests find smaller differences as well if many pairs differ.

    Args:
        deviation: Standard deviation over seeds of each row, with the denominator n - 1, (R,).
        count: Number of seeds of each row, (R,).
        level: Significance level.

    Returns:
        The difference, or None if fewer than two rows have ``MIN_SEEDS`` seeds.
    """
    import numpy as np

    deviations, counts = (np.asarray(values, dtype=np.float64) for values in (deviation, count))
    deviations, counts = deviations[counts >= MIN_SEEDS], counts[counts >= MIN_SEEDS]
    if len(counts) < 2:
        return None
    n = float(np.median(counts))
    pooled = float(np.sqrt((deviations**2 * (counts - 1)).sum() / (counts - 1).sum()))
    pairs = len(counts) * (len(counts) - 1) / 2
    return detectable_difference(pooled * (2 / n) ** 0.5, 2 * (n - 1), level / pairs)


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
