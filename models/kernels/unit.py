"""Rows of unit length."""

from __future__ import annotations

import torch.nn.functional as F
from torch import Tensor


def unit(x: Tensor) -> Tensor:
    """x (..., D) over its length, zeros where it is zero; in single precision or better, for half knows no small ε."""
    return F.normalize(x.float() if x.dtype.itemsize < 4 else x, dim=-1)
