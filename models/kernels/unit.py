"""Normalisation of vectors to unit length."""

from __future__ import annotations

import torch.nn.functional as F
from torch import Tensor

from .row_norm import has_loops, scaled_rows

SHORTEST = 1e-12
"""Length below which vectors are divided by this number."""


def unit(x: Tensor) -> Tensor:
    """Return x (..., D) divided by its length, zeros where x is zero, in single precision or better.

    Half precision cannot represent the small ε of the normalisation.
    """
    x = x.float() if x.dtype.itemsize < 4 else x
    return scaled_rows(x, 1, floor=SHORTEST**2) if has_loops(x) else F.normalize(x, dim=-1, eps=SHORTEST)
