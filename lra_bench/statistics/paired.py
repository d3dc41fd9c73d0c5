"""Tests of the difference between models, over seeds and over examples, and their correction for multiple tests."""

from __future__ import annotations

import functools
import math
from collections.abc import Callable, Sequence
from string import ascii_letters
from typing import Any

import numpy as np
from numpy.typing import ArrayLike

LEVEL = 0.05
"""Significance level."""
POWER = 0.80
"""Probability with which the detectable difference is found."""
CLAIM_SEEDS = 5
"""With fewer seeds no claim about other seeds is made, because the estimate of the variance is unreliable."""
MIN_SEEDS = 3
"""From this number of seeds to ``CLAIM_SEEDS``, a difference that all seeds share may be reported as just that."""
EVERY_SEED_LEVEL = 0.01
"""Significance level, over test rows, of a difference that all of fewer than ``CLAIM_SEEDS`` seeds share."""
MOST_COMPARED = 40
"""Largest number of rows of which all pairs are compared and grouped; of more rows only those with the best one are."""
SMALLEST_P = 1e-300
"""p-values below this are printed as bounds, because they are at the limit of floating-point numbers."""

GRID, LARGEST_WHOLE = 2**12, 2**15
"""Root of the sum of squares of differences that are scaled and rounded to whole numbers before a permutation test, and
the largest one of differences that are whole numbers already."""


def paired_t(differences: ArrayLike) -> Any:
    """Compute the two-sided p-value of Student's paired test over the last axis, one difference of scores per seed.

    Differences are paired by seed, because both models were trained on the same examples in the same order. If all
    differences are equal, p is 1 if they are 0, otherwise 0. Raises ``ValueError`` for fewer than two seeds.
    """
    values = np.asarray(differences, dtype=np.float64)
    n = values.shape[-1]
    if n < 2:
        raise ValueError("a paired test over seeds needs two or more")
    return _t_p(values.mean(axis=-1), values.std(axis=-1, ddof=1) / n**0.5, n - 1)


def welch(a: Sequence[float], b: Sequence[float]) -> tuple[float, float, float]:
    """Return the standard error of the difference of two means, its degrees of freedom, and Welch's two-sided p-value.

    Welch 1947, Biometrika 34. If neither sample varies, p is 1 if the means are equal, otherwise 0. Both samples need
    two values or more.
    """
    spreads = [float(np.var(side, ddof=1)) / len(side) for side in (a, b)]
    error = sum(spreads) ** 0.5
    parts = sum(spread**2 / (len(side) - 1) for spread, side in zip(spreads, (a, b), strict=True))
    freedom = error**4 / parts if parts else float(len(a) + len(b) - 2)
    return error, freedom, float(_t_p(float(np.mean(a) - np.mean(b)), error, freedom))


def detectable_difference(error: float, freedom: float, level: float = LEVEL, power: float = POWER) -> float:
    """Return the true difference that a two-sided t-test finds with a given probability.

    Args:
        error: Standard error of the difference.
        freedom: Degrees of freedom of the standard error.
        level: Significance level of the test.
        power: Probability of finding the difference.

    Returns:
        The difference, in the unit of ``error``.
    """
    return _noncentrality(freedom, level, power) * error


@functools.cache
def _noncentrality(freedom: float, level: float, power: float) -> float:
    """Return the detectable difference in standard errors.

    The power is averaged over 2,000 quantiles of the estimated standard error, because scipy's noncentral t
    distribution returns NaN in the tails.
    """
    from scipy.special import gammaincinv, ndtr, stdtrit  # importing scipy.stats takes a second

    limit = -float(stdtrit(freedom, level / 2))
    standard_error = np.sqrt(2 / freedom * gammaincinv(freedom / 2, (np.arange(2000) + 0.5) / 2000))
    return _root(lambda shift: float(ndtr(shift - limit * standard_error).mean()) - power, 4 * limit + 10)


def mcnemar(only_a: int, only_b: int) -> float:
    """Compute the exact two-sided p-value of McNemar's test.

    ``only_a`` and ``only_b`` are the numbers of examples that only A or only B gets right; if both are 0, p is 1.
    McNemar 1947, Psychometrika 12.
    """
    from scipy.special import bdtr

    return min(1.0, 2 * float(bdtr(min(only_a, only_b), only_a + only_b, 0.5)))


def swap_test(differences: ArrayLike) -> float:
    """Compute the two-sided p-value of the permutation test that swaps A and B in any subset of the examples.

    All permutations are counted. If all non-zero differences have the same absolute value, the test is McNemar's.
    Differences that are not whole numbers are first scaled to the sum of squares ``GRID`` squared and rounded, which
    changes p by about 2 %. The test of the rounded differences is valid too, because swapping changes their sign only.

    Args:
        differences: Difference of each example, (M,), summed over seeds, so that an example is swapped in all seeds.

    Returns:
        The p-value; 0 if it is too small for a floating-point number.
    """
    values = np.asarray(differences, dtype=np.float64)
    spread = float(np.linalg.norm(values))
    if spread > LARGEST_WHOLE or (values != values.round()).any():
        values = values * (GRID / spread)
    whole = values.round().astype(np.int64)
    sizes, counts = np.unique(np.abs(whole[whole != 0]), return_counts=True)
    if len(sizes) <= 1:
        return mcnemar(int((whole > 0).sum()), int((whole < 0).sum()))
    divisor = np.gcd.reduce(sizes)
    return min(1.0, 2 * _tail(sizes // divisor, counts, abs(int(whole.sum())) // int(divisor)))


def _tail(sizes: np.ndarray, counts: np.ndarray, observed: int) -> float:
    """Return the probability that a sum of numbers with random signs is at least ``observed``.

    With the right tilt, the sum of exponentially tilted numbers has the mean ``observed`` (Esscher 1932, Scand. Actuar.
    J. 15). Its distribution is computed from its characteristic function by a Fourier transform, and weighted to undo
    the tilt. The relative error is at most about 1e-11, however small the probability is.

    Args:
        sizes: Absolute values of the numbers, (K,), different whole numbers with no common divisor.
        counts: How many numbers have each absolute value, (K,).
        observed: A possible sum, not negative.

    Returns:
        The probability.
    """
    from scipy.special import expit

    total, smallest = int(sizes @ counts), int(sizes.min())
    if observed in (0, total):
        return math.ldexp(1.0, -int(counts.sum())) if observed else 1.0
    positive = (total + observed) // 2  # sum of the numbers with a positive sign
    tilt = _root(
        lambda tilt: float(counts @ (sizes * expit(tilt * sizes))) - positive, math.log(total / smallest) / smallest
    )
    log_scale = float(counts @ np.logaddexp(0.0, tilt * sizes)) - int(counts.sum()) * math.log(2) - tilt * positive
    if log_scale < -745:  # Chernoff's bound of the probability is below all floating-point numbers
        return 0.0
    share = expit(tilt * sizes)  # probability of a positive sign
    # The tilted sum is farther than length / 2 from its mean with a probability of at most 1e-12 (Hoeffding's bound).
    length = 2 ** math.ceil(math.log2(7.5 * math.sqrt(float(counts @ sizes**2))))
    frequency, squared_sine = np.arange(length // 2 + 1), np.sin(np.pi / length * np.arange(length)) ** 2
    log_modulus = np.zeros(len(frequency))
    with np.errstate(divide="ignore"):
        for k in np.argsort(-counts, kind="stable"):
            damping = 4 * share[k] * (1 - share[k]) * squared_sine[frequency * sizes[k] & (length - 1)]
            log_modulus += counts[k] / 2 * np.log1p(-damping)
            kept = log_modulus > -37  # smaller values vanish in the sum of the transform
            frequency, log_modulus = frequency[kept], log_modulus[kept]
    turn = -2 * np.pi / length
    factors = 1 - share + share * np.exp(1j * turn * (np.outer(frequency, sizes) % length))
    angle = np.angle(factors) @ counts.astype(np.float64) - turn * (frequency * positive % length)
    transform = np.zeros(length // 2 + 1, dtype=np.complex128)
    transform[frequency] = np.exp(log_modulus + 1j * angle)
    above = np.arange(length // 2)
    tilted = float(np.fft.irfft(transform, length)[above] @ np.exp(-tilt * above))
    return tilted * math.exp(log_scale)


def _root(function: Callable[[float], float], high: float) -> float:
    """Return the root of an increasing function between 0 and ``high``; importing scipy.optimize takes longer."""
    low = 0.0
    while low < (middle := (low + high) / 2) < high:
        low, high = (middle, high) if function(middle) < 0 else (low, middle)
    return middle


def _t_p(difference: ArrayLike, error: ArrayLike, freedom: ArrayLike) -> Any:
    from scipy.special import stdtr

    magnitude, standard_error = np.abs(np.asarray(difference, dtype=np.float64)), np.asarray(error, dtype=np.float64)
    with np.errstate(divide="ignore", invalid="ignore"):
        ratio = np.where(standard_error > 0, magnitude / standard_error, np.where(magnitude > 0, np.inf, 0.0))
    return 2 * stdtr(np.asarray(freedom, dtype=np.float64), -ratio)


def holm(p_values: ArrayLike) -> np.ndarray:
    """Correct p-values for multiple testing: a difference is significant if its corrected value is at most the level.

    The probability of at least one false positive among all M tests is then at most the level. Holm 1979, Scand. J.
    Statist. 6. Returns an array of the same shape, (M,).
    """
    values = np.asarray(p_values, dtype=np.float64)
    order = np.argsort(values, kind="stable")
    steps = np.maximum.accumulate(values[order] * np.arange(len(values), 0, -1))
    corrected = np.empty_like(values)
    corrected[order] = np.minimum(steps, 1.0)
    return corrected


def tie_groups(separate: ArrayLike) -> list[str]:
    """Return the letters of each row: two rows differ significantly unless they share a letter.

    ``separate`` states whether two rows differ significantly, (R, R), symmetric, best row first. If there are more than
    ``MOST_COMPARED`` rows, or more groups than letters, only the first row and the rows tied with it have a letter, the
    same for all; other differences are not reported.
    """
    differ = np.asarray(separate, dtype=bool)
    letters = [""] * len(differ)
    if not len(differ):
        return letters
    tied = ~(differ | differ.T)
    groups = _groups(tied) if len(differ) <= MOST_COMPARED else []
    if not 0 < len(groups) <= len(ascii_letters):
        groups = [np.flatnonzero(tied[0])]
    for letter, members in zip(ascii_letters, groups, strict=False):
        for member in members:
            letters[member] += letter
    return letters


def _groups(tied: np.ndarray) -> list[np.ndarray]:
    """Return sets of mutually tied rows, as sorted arrays of indices, that together contain every tied pair (k, k)."""
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
