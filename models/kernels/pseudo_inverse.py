"""Pseudo-inverse of a softmax matrix, from matrix products only."""

from __future__ import annotations

from torch import Tensor


def pseudo_inverse(a: Tensor, iterations: int) -> Tensor:
    """Apply Z ← ¼ Z (13 I − A Z (15 I − A Z (7 I − A Z))) ``iterations`` times.

    a (..., M, M) with entries ≥ 0 to (..., M, M). Razavi et al. 2014, as in Nyströmformer, arXiv 2102.03902. The
    initial Z is Aᵀ / (‖A‖₁ ‖A‖_∞), with separate norms for each matrix, so that ‖I − A Z‖ < 1 and the iteration
    converges, faster for a better conditioned A. O(M^3) time.
    """
    z = a.mT / (a.sum(-2, keepdim=True).amax(-1, keepdim=True) * a.sum(-1, keepdim=True).amax(-2, keepdim=True))
    for _ in range(iterations):
        product = a @ z
        inner = 7 * product - product @ product
        inner = 15 * product - product @ inner
        z = 0.25 * (13 * z - z @ inner)
    return z
