"""The pseudo-inverse of a softmax matrix by matrix products."""

from __future__ import annotations

from torch import Tensor


def pseudo_inverse(a: Tensor, iterations: int) -> Tensor:
    """Z ← ¼ Z (13 I − A Z (15 I − A Z (7 I − A Z))), so many times; a (..., M, M) with entries ≥ 0 to (..., M, M).

    Razavi et al. 2014, as in Nyströmformer, arXiv 2102.03902. It begins at Aᵀ / (‖A‖₁ ‖A‖_∞), whose norms are taken of
    each matrix alone; so ‖I − A Z‖ < 1 and it converges, the sooner the better A is conditioned. O(M^3) time.
    """
    z = a.mT / (a.sum(-2, keepdim=True).amax(-1, keepdim=True) * a.sum(-1, keepdim=True).amax(-2, keepdim=True))
    for _ in range(iterations):
        product = a @ z
        inner = 7 * product - product @ product
        inner = 15 * product - product @ inner
        z = 0.25 * (13 * z - z @ inner)
    return z
