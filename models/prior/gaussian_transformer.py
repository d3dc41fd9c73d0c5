"""Gaussian Transformer: softmax attention with a learned Gaussian prior on the distance."""

from __future__ import annotations

import math
from dataclasses import replace
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from lra_bench.contracts import UserError

from ..full.by_rows import Prior
from ..mixer import Context
from .added_prior import AddedPrior

LOWERED = 0.1
"""Initial value of −b, by which the score of a token with itself is reduced."""


class GaussianTransformer(AddedPrior):
    """Subtract |w (i − j)² + b| from the scores, with learned w > 0 and b < 0: a Gaussian, reduced near its centre.

    Guo, Zhang, Liu 2019, AAAI 33, "Gaussian Transformer: A Lightweight Approach for Natural Language Inference".
    q (B, H, N, D), k and v (B, G, N, D) -> (B, H, N, D). ``spread`` is the initial standard deviation of the Gaussian,
    in tokens. The prior increases up to the distance √(−b / w) and decreases beyond it. Raises ``UserError`` if
    ``spread`` is not positive.

    Deviations from the paper: each head has its own w and b, and both are parametrised by softplus; the paper specifies
    neither their initial values nor how their signs are enforced.
    """

    spec = replace(
        AddedPrior.spec, paper="Gaussian Transformer: A Lightweight Approach for Natural Language Inference", arxiv=None
    )

    def __init__(self, width: int, heads: int, *, spread: float = 8.0, **common: Any) -> None:
        super().__init__(width, heads, **common)
        if spread <= 0:
            raise UserError(f"model.mixer.spread={spread}: must be positive")
        self.steepness = nn.Parameter(torch.full((heads,), math.log(math.expm1(0.5 * spread**-2))))
        self.lowering = nn.Parameter(torch.full((heads,), math.log(math.expm1(LOWERED))))

    def prior(self, q: Tensor, k: Tensor, context: Context) -> tuple[Prior, tuple[Tensor, ...]]:
        """Return the prior of the distance (H, queries, keys), which is the same for all sequences."""
        w, b = (F.softplus(each)[:, None, None] for each in (self.steepness, self.lowering))
        positions = torch.arange(q.shape[2], device=q.device)

        def prior(start: int, queries: int, keys: int) -> Tensor:
            offsets = positions[start : start + queries, None] - positions[:keys]
            return -(w * offsets.square() - b).abs()

        return prior, ()
