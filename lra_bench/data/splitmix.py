"""Counter-based random numbers for compiled loops: the n-th number is a function of key + n only.

SplitMix64 (Steele, Lea and Flood 2014, "Fast splittable pseudorandom number generators").
"""

from __future__ import annotations

from typing import Any

import numpy as np

from .compiled import compiled

STEP = np.uint64(0x9E3779B97F4A7C15)
_FIRST_FACTOR = np.uint64(0xBF58476D1CE4E5B9)
_SECOND_FACTOR = np.uint64(0x94D049BB133111EB)
_HALF = np.uint64(32)
_UNIT = 2.0**-53


@compiled
def mix(counter: Any) -> Any:
    """Return 64 random bits for one counter."""
    z = (counter ^ (counter >> np.uint64(30))) * _FIRST_FACTOR
    z = (z ^ (z >> np.uint64(27))) * _SECOND_FACTOR
    return z ^ (z >> np.uint64(31))


@compiled
def below(counter: Any, bound: int) -> Any:
    """Return a random integer from 0 to ``bound`` - 1; ``counter`` (1,) uint64 is incremented in place."""
    counter[0] += STEP
    return np.int64(((mix(counter[0]) >> _HALF) * np.uint64(bound)) >> _HALF)


@compiled
def uniform(counter: Any) -> float:
    """Return a random number in [0, 1) with 53 bits; ``counter`` (1,) uint64 is incremented in place."""
    counter[0] += STEP
    return np.float64(mix(counter[0]) >> np.uint64(11)) * _UNIT
