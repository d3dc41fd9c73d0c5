"""Merging of heads by capsule routing: heads vote for output capsules, and votes that agree have larger weights."""

from __future__ import annotations

import math
from typing import ClassVar

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint

from lra_bench.contracts import UserError

from ..kernels.linear import full_precision

SMALLEST_VARIANCE = 1e-4
SMALLEST_SHARE = 1e-8


class CapsuleMerge(nn.Module):
    """Merge of heads by routing: head h of a token votes W_hn u_h for output capsule n; a subclass routes the votes.

    Maps heads (B, N, H·D) to concatenated capsules (B, N, E). It has as many parameters as an output projection without
    bias, of whose result the votes are the terms. O(N H E (D + T)) time for T ``iterations``; votes (H, B·N, E) are
    computed in float32 or higher precision and recomputed in the backward pass. ``capsules`` is by default the number
    of heads. Raises ``UserError`` if it does not divide ``width``, or if there is no iteration.
    """

    revision: ClassVar[int] = 1
    """Part of the hash of cells. Raise it if the class computes something else from the same arguments."""

    def __init__(
        self, *, heads: int, head_dim: int, width: int, capsules: int | None = None, iterations: int = 3
    ) -> None:
        super().__init__()
        self.heads, self.capsules, self.iterations = heads, heads if capsules is None else capsules, iterations
        if self.capsules < 1 or width % self.capsules:
            raise UserError(f"model.mixer.merge.capsules={self.capsules}: must divide backbone.width={width}")
        if iterations < 1:
            raise UserError(f"model.mixer.merge.iterations={iterations}: must be at least 1")
        # Xavier-uniform bound of the output projection that the votes replace.
        bound = (6 / (heads * head_dim + width)) ** 0.5
        self.votes = nn.Parameter(torch.empty(heads, head_dim, width).uniform_(-bound, bound))

    def forward(self, x: Tensor) -> Tensor:
        """Merge heads (B, N, H·D) to (B, N, E)."""
        merged: Tensor = (
            checkpoint(self._merge, x, use_reentrant=False, preserve_rng_state=False)
            if torch.is_grad_enabled()
            else self._merge(x)
        )
        return merged

    def route(self, votes: Tensor) -> Tensor:
        """Route votes (H, R, C, E / C) of R tokens to capsules (R, C, E / C)."""
        raise NotImplementedError(f"{type(self).__name__} defines no route")

    def _merge(self, x: Tensor) -> Tensor:
        with full_precision(x):
            tokens = x.unflatten(-1, (self.heads, -1)).flatten(0, 1).transpose(0, 1).to(self.votes.dtype)
            merged = self.route((tokens @ self.votes).unflatten(-1, (self.capsules, -1)))
        return merged.reshape(*x.shape[:2], -1).to(x.dtype)


class DynamicRouting(CapsuleMerge):
    """Dynamic routing: the weight of a vote grows with its agreement with the capsule.

    Li et al. 2019, arXiv 1904.03100, and Gu, Feng 2019, arXiv 1909.00188, with the routing of Sabour et al. 2017,
    arXiv 1710.09829. Weights of votes are a softmax over capsules; a capsule is the weighted sum of its votes, squashed
    to a length below one.

    Deviations from Li et al.: votes are maps of single heads, not of all heads together, and every layer uses routing.
    """

    def route(self, votes: Tensor) -> Tensor:
        """Route votes (H, R, C, E / C) to capsules (R, C, E / C) by their inner products with the capsules."""
        logits = votes.new_zeros(votes.shape[:3])
        for _ in range(self.iterations - 1):
            logits = logits + (votes * self._capsules(logits, votes)).sum(-1)
        return self._capsules(logits, votes)

    def _capsules(self, logits: Tensor, votes: Tensor) -> Tensor:
        return squash((logits.softmax(-1)[..., None] * votes).sum(0))


class ExpectationMaximisation(CapsuleMerge):
    """EM routing: each capsule is a Gaussian fitted to the votes, weighted by responsibilities.

    Li et al. 2019, arXiv 1904.03100, and Gu, Feng 2019, arXiv 1909.00188, with the routing of Hinton et al. 2018. The
    output of a capsule is its mean times its activation σ(λ (β − cost)): cost is the entropy of the Gaussian times the
    sum of its responsibilities, β is learned, and λ = 0.01 (1 − 0.95^t) increases with iteration t. 1e-4 is added to
    variances.

    Deviations from Li et al.: votes are maps of single heads, not of all heads together, and every layer uses routing.
    """

    def __init__(
        self, *, heads: int, head_dim: int, width: int, capsules: int | None = None, iterations: int = 3
    ) -> None:
        super().__init__(heads=heads, head_dim=head_dim, width=width, capsules=capsules, iterations=iterations)
        self.benefit = nn.Parameter(torch.zeros(self.capsules))

    def route(self, votes: Tensor) -> Tensor:
        """Route votes (H, R, C, E / C) to capsules (R, C, E / C) by their likelihoods under the Gaussians."""
        responsibilities = torch.full_like(votes[..., :1], 1 / self.capsules)
        mean, variance, log_activation = self._fit(votes, responsibilities, 1)
        for t in range(2, self.iterations + 1):
            logits = log_activation - 0.5 * ((votes - mean).square() / variance + variance.log()).sum(-1)
            mean, variance, log_activation = self._fit(votes, logits.softmax(-1)[..., None], t)
        return log_activation.exp()[..., None] * mean

    def _fit(self, votes: Tensor, responsibilities: Tensor, t: int) -> tuple[Tensor, Tensor, Tensor]:
        """Return means and variances (R, C, E / C) and the logarithms of activations (R, C) of iteration t."""
        mass = responsibilities.sum(0)
        total = mass.clamp_min(SMALLEST_SHARE)
        mean = (responsibilities * votes).sum(0) / total
        variance = (responsibilities * (votes - mean).square()).sum(0) / total + SMALLEST_VARIANCE
        entropy = 0.5 * (variance.log() + (1 + math.log(2 * math.pi))).sum(-1)
        return mean, variance, F.logsigmoid(0.01 * (1 - 0.95**t) * (self.benefit - entropy * mass[..., 0]))


def squash(x: Tensor) -> Tensor:
    """Return x scaled to the length |x|² / (1 + |x|²)."""
    square = x.square().sum(-1, keepdim=True)
    # The gradient of the square root is infinite at zero.
    return x * (square + torch.finfo(x.dtype).tiny).sqrt() / (1 + square)
