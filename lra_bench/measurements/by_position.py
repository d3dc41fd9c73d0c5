"""The loss of a language model as a function of the number of tokens read."""

from __future__ import annotations

import math

import numpy as np
from numpy.typing import NDArray

PER_DOUBLING = 2


def bins(context: int, train_length: int) -> list[tuple[int, int]]:
    """Return bins (first, last) of the numbers of tokens read, from 1 to ``context``, two per doubling.

    One bin ends at ``train_length``. Bins near 1 that contain no integer are left out.
    """
    low = math.floor(-PER_DOUBLING * math.log2(train_length)) if train_length > 1 else 0
    high = math.ceil(PER_DOUBLING * math.log2(context / train_length))
    ends = {round(train_length * 2 ** (step / PER_DOUBLING)) for step in range(low, high + 1)}
    lasts = sorted({min(end, context) for end in ends if end >= 1} | {context})
    return [(before + 1, last) for before, last in zip([0, *lasts], lasts, strict=False)]


def loss_by_position(
    losses: NDArray[np.float64], seen: NDArray[np.int64], context: int, train_length: int
) -> list[tuple[int, int, int, float]]:
    """Compute the mean loss per bin from ``losses`` (P,) in nats of tokens predicted after ``seen`` (P,) tokens.

    Returns first, last, number of scored tokens and mean loss in bits of each bin that is not empty.
    """
    found = []
    for first, last in bins(context, train_length):
        inside = losses[(seen >= first) & (seen <= last)]
        if len(inside):
            found.append((first, last, len(inside), float(inside.mean()) / math.log(2)))
    return found
