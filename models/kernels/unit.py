"""Normalisation of vectors to unit length."""

from __future__ import annotations

import torch.nn.functional as F
from torch import Tensor


def unit(x: Tensor) -> Tensor:
    """Return x (..., D) divided by its length, zeros where x is zero, in single precision or better.

    Half precision cannot represent the small ε of the normalisation.
    """
    return F.normalize(x.float() if x.dtype.itemsize < 4 else x, dim=-1)
