"""HiPPO matrices, under which a state stores its inputs as coefficients of polynomials, and other initial poles."""

from __future__ import annotations

import math
from functools import lru_cache

import torch
from torch import Tensor, nn

from lra_bench.contracts import UserError

INITIAL_POLES = ("legs", "lin", "inv", "real")


def to_parameter(x: Tensor) -> nn.Parameter:
    """Return a parameter of torch's default type that is initialised to a copy of x, computed in double precision."""
    return nn.Parameter(x.to(torch.get_default_dtype(), copy=True))


def conjugate_pairs(states: int) -> int:
    """Return the number of conjugate pairs among ``states``; raise ``UserError`` unless it is even and at least 2."""
    if states < 2 or states % 2:
        raise UserError(f"model.mixer.states={states}: must be even and at least 2, for conjugate pairs")
    return states // 2


@lru_cache(maxsize=4)
def legs(size: int) -> tuple[Tensor, Tensor, Tensor]:
    """Return HiPPO-LegS of ``size`` states as A = V (Diag(λ) − p p*) V*: λ, p (size,) and V (size, size), complex128.

    A_nk is −√(2n + 1) √(2k + 1) for n > k and −(n + 1) for n = k; adding P Pᵀ with P_n = √(n + 1/2) makes it normal
    (Gu, Goel, Ré 2021, arXiv 2111.00396). Eigenvalues are sorted by imaginary part, so that those above the real axis
    come last. The first component of each eigenvector is positive, which fixes its phase. Cached for the layers of a
    model: do not change the tensors in place.
    """
    number = torch.arange(size, dtype=torch.float64)
    scale = (2 * number + 1).sqrt()
    low_rank = (number + 0.5).sqrt()
    a = -(scale[:, None] * scale).tril(-1) - torch.diag(number + 1)
    # The sum is −1/2 plus a skew-symmetric matrix. i times the latter is Hermitian, so its eigenvectors are orthogonal.
    skew = a + low_rank[:, None] * low_rank + 0.5 * torch.eye(size, dtype=torch.float64)
    frequencies, vectors = torch.linalg.eigh(-1j * skew)
    vectors = vectors * vectors[0].conj() / vectors[0].abs()
    return (
        torch.complex(torch.full_like(frequencies, -0.5), frequencies),
        vectors.mH @ low_rank.to(vectors.dtype),
        vectors,
    )


def legs_input(pairs: int, clip: float | None) -> Tensor:
    """Return the input vector V* b of HiPPO-LegS for the poles above the real axis, (``pairs``,), complex128.

    b_n = √(2n + 1), which is √2 P_n. Imaginary parts are clipped to ± ``clip`` unless it is None: they grow with the
    number of states, while real parts stay below one. Raises ``UserError`` unless ``clip`` is positive.
    """
    if clip is not None and clip <= 0:
        raise UserError(f"model.mixer.input_clip={clip}: must be positive, or null for no clipping")
    vector = 2**0.5 * legs(2 * pairs)[1][pairs:]
    return vector if clip is None else torch.complex(vector.real, vector.imag.clamp(-clip, clip))


def named_poles(kind: str, count: int) -> Tensor:
    """Return ``count`` initial poles, complex128, without their conjugates; ``kind`` is one of ``INITIAL_POLES``.

    ``legs`` are the eigenvalues of HiPPO-LegS without its rank-one term; ``lin``, −1/2 + iπn, and ``inv``, −1/2 + i
    (N/π) (N / (2n + 1) − 1) with N = 2 ``count``, approximate them (Gu, Gupta, Goel, Ré 2022, arXiv 2206.11893);
    ``real`` are −(n + 1). Raises ``UserError`` for other kinds.
    """
    number, size = torch.arange(count, dtype=torch.float64), 2 * count
    half = torch.full_like(number, -0.5)
    if kind == "legs":
        return legs(size)[0][count:]
    if kind == "lin":
        return torch.complex(half, math.pi * number)
    if kind == "inv":
        return torch.complex(half, size / math.pi * (size / (2 * number + 1) - 1))
    if kind == "real":
        return torch.complex(-(number + 1), torch.zeros_like(number))
    raise UserError(f"model.mixer.poles={kind}: must be one of {', '.join(INITIAL_POLES)}")
