"""Reduction of a recurrence with factors of any sign to one with decays.

For S_t = a_t S_(t−1) + k_t v_tᵀ, o_t = S_tᵀ q_t and p_t the product of the signs of a_1 … a_t, the states p_t S_t have
the factors |a_t|, keys p_t k_t and queries p_t q_t.
"""

from __future__ import annotations

import torch
from torch import Tensor

SMALLEST = 1e-5
"""Smallest magnitude of a factor: gradients of its logarithm, which are divided by it, stay accurate."""


def cumulative_signs(factors: Tensor) -> Tensor:
    """Return the products of the signs of ``factors`` (B, H, N) up to and including each position, 1 or −1."""
    one = torch.ones_like(factors)
    return torch.where(factors < 0, -one, one).cumprod(-1)


def log_magnitudes(factors: Tensor) -> Tensor:
    """Return the logarithms of the magnitudes of ``factors``, which are at least ``SMALLEST``."""
    return factors.abs().clamp(min=SMALLEST).log()
