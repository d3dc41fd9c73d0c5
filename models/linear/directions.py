"""Random directions for feature maps."""

from __future__ import annotations

import torch
from torch import Tensor


def orthogonal_directions(count: int, width: int, generator: torch.Generator) -> Tensor:
    """Return ``count`` Gaussian vectors (count, width) in float64, orthogonal within each block of ``width`` vectors.

    Q of a QR decomposition is not Haar-distributed, because LAPACK does not normalise the signs of R's diagonal;
    multiplying Q by these signs corrects this (Mezzadri 2007, arXiv math-ph/0609050). The lengths are those of
    independent Gaussian vectors.
    """
    blocks = -(-count // width)
    gaussian = torch.randn(blocks, width, width, generator=generator, dtype=torch.float64)
    q, r = torch.linalg.qr(gaussian)
    rows = (q * r.diagonal(dim1=-2, dim2=-1).sign()[:, None, :]).mT.flatten(0, 1)[:count]
    lengths = torch.randn(count, width, generator=generator, dtype=torch.float64).norm(dim=-1, keepdim=True)
    return rows * lengths
