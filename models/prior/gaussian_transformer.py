"""Attention with a learned Gaussian of the distance."""

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

LOWERED = 0.1  # what the score of a token with itself loses at the beginning


class GaussianTransformer(AddedPrior):
    """Scores lose |w (i − j)² + b|, with learned w > 0 and b < 0: a Gaussian of the distance, lowered at its top.

    Guo, Zhang, Liu 2019, AAAI 33, "Gaussian Transformer: A Lightweight Approach for Natural Language Inference".
    q (B, H, N, D), k and v (B, G, N, D) -> (B, H, N, D). ``spread`` is the standard deviation, in tokens, that the
    Gaussian begins with; scores fall from the distance √(−b / w) on and rise up to there.
    Deviates: w and b belong to a head, and pass through softplus; the paper says neither how they begin nor how they
    keep their signs.
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
        """The Gaussian of the distance, the same for all rows of the batch."""
        w, b = (F.softplus(each)[:, None, None] for each in (self.steepness, self.lowering))
        places = torch.arange(q.shape[2], device=q.device)

        def prior(start: int, queries: int, keys: int) -> Tensor:
            away = places[start : start + queries, None] - places[:keys]
            return -(w * away.square() - b).abs()

        return prior, ()
