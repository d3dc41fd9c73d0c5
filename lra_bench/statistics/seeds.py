"""Summary of the scores of several seeds: what may be shown, and whether they exceed a floor."""

from __future__ import annotations

import itertools
import math
from collections.abc import Sequence
from dataclasses import dataclass

from .intervals import t_interval
from .paired import CLAIM_SEEDS

GAP = 0.10
"""Smallest gap between two levels of scores, as a fraction of the scale."""
GAP_ERRORS = 3.0
"""Smallest gap between two levels of scores, in standard errors of the difference of the neighbours."""
Z = 1.959963984540054
"""Half of the width of a 95 % interval in standard errors."""


@dataclass(frozen=True)
class SeedScore:
    """The score of one seed.

    Attributes:
        score: The score on the test split.
        low: Lower end of its 95 % confidence interval over examples, None if unknown.
        high: Upper end.
        clears_floor: Whether its interval is entirely better than the strongest floor, None if no floor is known.
    """

    score: float
    low: float | None
    high: float | None
    clears_floor: bool | None

    @property
    def error(self) -> float:
        """The standard error over examples, 0 if unknown."""
        return 0.0 if self.low is None or self.high is None else (self.high - self.low) / (2 * Z)


@dataclass(frozen=True)
class SeedSummary:
    """The scores of all seeds of a row.

    Attributes:
        score: Mean score.
        low: Lower end of the 95 % confidence interval: over examples with one seed, of the mean over seeds (Student's
            t) with ``CLAIM_SEEDS`` or more on one level, otherwise None.
        high: Upper end.
        learned: Number of seeds whose own interval clears the floor, None if no floor is known.
        two_levels: Whether the seeds lie on two levels (see ``two_levels``), so that a mean describes none of them.
        clears_floor: Whether every seed has learned and, if there is an interval over seeds, it clears the floor too.
            None if no floor is known.
    """

    score: float
    low: float | None
    high: float | None
    learned: int | None
    two_levels: bool
    clears_floor: bool | None


def summarise_seeds(seeds: Sequence[SeedScore], higher_is_better: bool, floor: float | None) -> SeedSummary:
    """Summarise the scores of one or more seeds.

    Args:
        seeds: The scores.
        higher_is_better: Whether a larger score is better; then the scale is 0 to 1, otherwise 0 to the floor.
        floor: Score of the strongest floor, the mean over seeds, None if unknown.

    Returns:
        The summary.
    """
    scores = [seed.score for seed in seeds]
    apart = two_levels(seeds, scale(higher_is_better, floor))
    if len(seeds) == 1:
        low, high = seeds[0].low, seeds[0].high
    elif len(seeds) >= CLAIM_SEEDS and not apart:
        below, above = t_interval(scores)
        low, high = max(below, 0.0), min(above, 1.0) if higher_is_better else above
    else:
        low, high = None, None
    known = [seed.clears_floor for seed in seeds if seed.clears_floor is not None]
    learned = sum(known) if len(known) == len(seeds) else None
    clears = None if learned is None else learned == len(seeds)
    if clears and len(seeds) >= CLAIM_SEEDS and floor is not None and low is not None and high is not None:
        clears = low > floor if higher_is_better else high < floor
    return SeedSummary(math.fsum(scores) / len(scores), low, high, learned, apart, clears)


def two_levels(seeds: Sequence[SeedScore], scale: float) -> bool:
    """Return whether the scores lie on two levels.

    They do if the largest gap between neighbours exceeds both ``GAP`` of the scale and ``GAP_ERRORS`` standard errors
    of the difference of these neighbours.
    """
    ordered = sorted(seeds, key=lambda seed: seed.score)
    pairs = list(itertools.pairwise(ordered))
    if not pairs:
        return False
    below, above = max(pairs, key=lambda pair: pair[1].score - pair[0].score)
    return above.score - below.score > max(GAP * scale, GAP_ERRORS * math.hypot(below.error, above.error))


def scale(higher_is_better: bool, floor: float | None) -> float:
    """Return the range of possible scores: 1 for accuracies; the floor for bits per character, 8 bits if unknown."""
    return 1.0 if higher_is_better else floor if floor is not None and floor > 0 else 8.0
