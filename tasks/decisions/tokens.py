"""Trajectories as token sequences: return, observation and action of each step (Chen et al. 2021, arXiv 2106.01345)."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from .rooms import FIRST_ACTION, FIRST_OBSERVATION, FIRST_RETURN, PER_STEP, UNKNOWN


class Steps(NamedTuple):
    """Tokens of steps, (E, T) each."""

    returns: NDArray[np.int64]
    observations: NDArray[np.int64]
    actions: NDArray[np.int64]


def interleave(
    returns: NDArray[np.float64] | None, observations: NDArray[np.int64], actions: NDArray[np.int64]
) -> NDArray[np.int64]:
    """Return the tokens (E, 3 T) of trajectories (E, T), in the order R_1, o_1, a_1, R_2, o_2, a_2 and so on.

    ``returns`` are the returns-to-go, 0 or 1; None replaces them by the token ``UNKNOWN``.
    """
    first = np.full(observations.shape, UNKNOWN) if returns is None else FIRST_RETURN + returns.astype(np.int64)
    tokens = np.stack([first, FIRST_OBSERVATION + observations, FIRST_ACTION + actions], axis=2)
    return tokens.reshape(len(observations), -1)


def separate(tokens: NDArray[np.int64]) -> Steps:
    """Return returns-to-go (−1 if unknown), observations and actions of tokens (E, 3 T); inverse of ``interleave``."""
    parts = tokens.reshape(len(tokens), -1, PER_STEP).astype(np.int64)
    returns = np.where(parts[..., 0] == UNKNOWN, -1, parts[..., 0] - FIRST_RETURN)
    return Steps(returns, parts[..., 1] - FIRST_OBSERVATION, parts[..., 2] - FIRST_ACTION)
