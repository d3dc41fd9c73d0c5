"""Which rows of a ranking can be told apart, all pairs tested at once."""

from __future__ import annotations

from string import ascii_letters
from typing import TYPE_CHECKING

from .paired import LEVEL, MIN_SEEDS, detectable_difference, welch_t

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import ArrayLike


MOST_GROUPED = 200
"""Above so many rows, or as many groups as letters, only the tie with the best is told: nobody reads more of them."""


def holm(p_values: ArrayLike) -> np.ndarray:
    """p-values corrected for their number, so that the chance of any false claim among them stays at the level.

    Holm 1979, Scand. J. Statist. 6.
    """
    import numpy as np

    values = np.asarray(p_values, dtype=np.float64)
    order = np.argsort(values, kind="stable")
    steps = np.maximum.accumulate(values[order] * np.arange(len(values), 0, -1))
    corrected = np.empty_like(values)
    corrected[order] = np.minimum(steps, 1.0)
    return corrected


def tie_groups(mean: ArrayLike, deviation: ArrayLike, count: ArrayLike, level: float = LEVEL) -> list[str]:
    """Letters of each row: two rows that share one were not told apart, two that share none were.

    Rows are best first, with the mean, standard deviation and number of their seeds. Every pair is tested over seeds
    (Welch), corrected after Holm. Rows of fewer than ``MIN_SEEDS`` seeds get no letter, for nothing can be claimed; of
    more than ``MOST_GROUPED`` rows only those tied with the best get one.
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
    """The difference of two rows that the tests behind ``tie_groups`` find with 80 % probability; None without a pair.

    For two rows of the median number of seeds with the pooled deviation, at the strictest level of Holm's correction.
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
    """Sets of rows that are all tied with each other, such that every tied pair stands in one; (k, k) bool -> indices.

    Each set is grown in the order of the rows from the first pair that no set holds yet.
    """
    import numpy as np

    covered = np.zeros_like(tied)
    found = []
    for row in range(len(tied)):
        while (left := np.flatnonzero(tied[row] & ~covered[row])).size:
            members = [row] if not covered[row, row] else [row, int(left[0])]
            candidates = np.logical_and.reduce(tied[members])
            candidates[members] = False
            while candidates.any():
                members.append(int(np.argmax(candidates)))
                candidates &= tied[members[-1]]
                candidates[members[-1]] = False
            covered[np.ix_(members, members)] = True
            found.append(np.asarray(sorted(members)))
    return found
