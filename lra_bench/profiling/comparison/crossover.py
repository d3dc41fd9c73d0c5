"""The efficiency length: from which length on a model costs less than exact attention."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from typing import Any

AT_ONCE, CROSSES, NEVER, UNKNOWN = "at once", "crosses", "never", "unknown"


@dataclass(frozen=True)
class Crossover:
    """``length`` is the first measured one from which on the model costs less; None where there is none.

    ``verdict``: ``at once`` (at the shortest length that was measured already), ``crosses``, ``never`` (not up to
    ``longest``), ``unknown`` (no length at which both can be compared). ``interpolated`` is where the straight lines
    between the costs of the last length before and the first after meet, on logarithmic axes; None where a cost of
    the four is unknown or the model is ahead at once.
    """

    verdict: str
    length: int | None
    interpolated: float | None
    longest: int | None

    def as_dict(self) -> dict[str, Any]:
        """The fields by name."""
        return asdict(self)


def crossover(own: Mapping[int, float | None], other: Mapping[int, float | None]) -> Crossover:
    """From which length on ``own`` costs less than ``other``, both by length; None is a length that failed.

    The model must stay ahead at every longer length at which it runs, so that a single lucky one is no crossing. Where
    the other fails and the model does not, the model is ahead; where it fails itself, it is not. Lengths at which both
    fail, or that one of the two was not asked for, are left out.
    """
    lengths = sorted(length for length in set(own) & set(other) if own[length] is not None or other[length] is not None)
    if all(own[length] is None or other[length] is None for length in lengths):
        return Crossover(UNKNOWN, None, None, None)
    ahead = [length for length in lengths if _less(own[length], other[length])]
    behind = [length for length in lengths if length not in ahead]
    first = next((length for length in ahead if not behind or length > behind[-1]), None)
    if first is None:
        return Crossover(NEVER, None, None, lengths[-1])
    if not behind:
        return Crossover(AT_ONCE, first, None, lengths[-1])
    return Crossover(CROSSES, first, _meeting(behind[-1], first, own, other), lengths[-1])


def _less(own: float | None, other: float | None) -> bool:
    return own is not None and (other is None or own < other)


def _meeting(
    before: int, after: int, own: Mapping[int, float | None], other: Mapping[int, float | None]
) -> float | None:
    costs = [each[length] for length in (before, after) for each in (own, other)]
    if any(cost is None or cost <= 0 for cost in costs):
        return None
    own_before, other_before, own_after, other_after = (math.log(cost) for cost in costs if cost is not None)
    gap_before, gap_after = own_before - other_before, own_after - other_after
    share = gap_before / (gap_before - gap_after) if gap_before != gap_after else 0.0
    return math.exp(math.log(before) + share * (math.log(after) - math.log(before)))
