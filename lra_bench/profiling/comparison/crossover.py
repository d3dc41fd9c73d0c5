"""The efficiency length: the length from which on a model costs less than exact attention."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import NamedTuple

import numpy

ALWAYS, CROSSES, NEVER, UNKNOWN = "at once", "crosses", "never", "unknown"


class Crossover(NamedTuple):
    """The lengths at which a model starts to cost less than another.

    ``verdict`` is ``at once`` (already at the shortest measured length), ``crosses``, ``never`` (not up to
    ``longest``) or ``unknown`` (there is no length at which both can be compared). ``length`` is the first measured
    length from which on the model costs less, None if there is none. ``interpolated`` is the intersection of the two
    lines through the costs at the last length before and the first length after the crossing, on logarithmic axes; None
    if one of the four costs is unknown or there is no crossing. ``longest`` is the longest compared length.
    """

    verdict: str
    length: int | None
    interpolated: float | None
    longest: int | None


def crossover(own: Mapping[int, float | None], other: Mapping[int, float | None]) -> Crossover:
    """Find the length from which on ``own`` costs less than ``other``, both costs by length, None for a failure.

    The model must cost less at every longer compared length, so that a single outlier is not a crossing. If only the
    other fails at a length, the model counts as cheaper; if the model itself fails, it does not. Lengths at which both
    fail, or which only one of the two has, are ignored.
    """
    lengths = sorted(length for length in set(own) & set(other) if own[length] is not None or other[length] is not None)
    if all(own[length] is None or other[length] is None for length in lengths):
        return Crossover(UNKNOWN, None, None, None)
    pairs = ((length, own[length], other[length]) for length in lengths)
    cheaper = [length for length, mine, yours in pairs if mine is not None and (yours is None or mine < yours)]
    not_cheaper = [length for length in lengths if length not in cheaper]
    first = next((length for length in cheaper if not not_cheaper or length > not_cheaper[-1]), None)
    if first is None:
        return Crossover(NEVER, None, None, lengths[-1])
    if not not_cheaper:
        return Crossover(ALWAYS, first, None, lengths[-1])
    return Crossover(CROSSES, first, _intersection(not_cheaper[-1], first, own, other), lengths[-1])


def _intersection(
    before: int, after: int, own: Mapping[int, float | None], other: Mapping[int, float | None]
) -> float | None:
    """Return the length at which the costs are equal, interpolated on logarithmic axes; None if one is unknown."""
    costs = [each[length] for length in (before, after) for each in (own, other)]
    if any(cost is None or cost <= 0 for cost in costs):
        return None
    own_before, other_before, own_after, other_after = (math.log(cost) for cost in costs if cost is not None)
    gaps = own_after - other_after, own_before - other_before  # the first is negative, the second is not
    return math.exp(numpy.interp(0.0, gaps, (math.log(after), math.log(before))))
