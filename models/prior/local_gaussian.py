"""Attention that prefers a region whose centre, and whose width, every query predicts."""

from __future__ import annotations

from dataclasses import replace
from typing import Any, Literal

import torch
from torch import Tensor, nn

from lra_bench.contracts import UserError

from ..full.by_rows import Prior
from ..kernels.linear import full_precision
from ..kernels.means import running_mean
from ..kernels.segments import segment_mean
from ..mixer import Context
from .added_prior import AddedPrior

NARROWEST = 0.01  # in places; by then all weight lies on one key, and a smaller deviation would divide by zero


class LocalGaussian(AddedPrior):
    """Scores lose (j − P_i)² / 2σ_i²: each query predicts the centre P_i of its region, σ_i is half its width.

    Yang et al. 2018, arXiv 1810.10182. q (B, H, N, D), k and v (B, G, N, D) -> (B, H, N, D). Per head,
    P_i = N sigmoid(u · tanh(W q_i)) with N the tokens of the row. ``window`` is the width: a number of tokens (the
    paper has 10); ``layer``, N sigmoid(u · tanh(W k)) of the mean key k; or ``query``, as the centre with a u of its
    own. The lower ``layers`` have a prior, the others are full attention.
    The paper's W is (D, D) for one head; its code makes one of all heads, which is H times larger.
    The causal form, which is ours, sets N to the tokens up to the query and the mean to that of their keys.
    """

    spec = replace(
        AddedPrior.spec,
        paper="Modeling Localness for Self-Attention Networks",
        arxiv="1810.10182",
        full_config={"window": 1e9},
    )

    def __init__(
        self,
        width: int,
        heads: int,
        *,
        window: float | Literal["query", "layer"] = "query",
        layers: int = 3,
        **common: Any,
    ) -> None:
        super().__init__(width, heads, **common)
        if window not in ("query", "layer") and (isinstance(window, str) or window <= 0):
            raise UserError(f"model.mixer.window={window}: must be query, layer or a positive number of tokens")
        if layers < 0:
            raise UserError(f"model.mixer.layers={layers}: must not be negative")
        self.window = window
        near = self.layer < layers
        square, vector = (heads, self.head_dim, self.head_dim), (heads, self.head_dim)
        self.centre_hidden = _drawn(square, near)
        self.centre_read = _drawn(vector, near)
        self.width_hidden = _drawn(square, near and window == "layer")
        self.width_read = _drawn(vector, near and isinstance(window, str))

    def prior(self, q: Tensor, k: Tensor, context: Context) -> tuple[Prior, tuple[Tensor, ...]] | None:
        """The Gaussian, from the centres and −1 / 2σ² (B, H, N, 1) of all queries."""
        if self.centre_hidden is None or self.centre_read is None:
            return None
        tokens = self._tokens(q, context)
        with full_precision(q):
            q, k = (x.float() if x.dtype.itemsize < 4 else x for x in (q, k))
            hidden = (q @ self.centre_hidden).tanh()
            centre = tokens * (hidden @ self.centre_read[..., None]).sigmoid()
            if self.width_hidden is not None:
                hidden = (self._mean_key(k, context) @ self.width_hidden).tanh()
            if self.width_read is None:
                width = torch.full_like(centre, float(self.window))
            else:
                width = tokens * (hidden @ self.width_read[..., None]).sigmoid()
            steepness = -0.5 * (width / 2).clamp(min=NARROWEST).square().reciprocal()
        places = torch.arange(q.shape[2], device=q.device)

        def prior(start: int, queries: int, keys: int, centre: Tensor, steepness: Tensor) -> Tensor:
            return (places[:keys] - centre).square() * steepness

        return prior, (centre, steepness.expand_as(centre))

    def _tokens(self, q: Tensor, context: Context) -> Tensor:
        """N of each query, broadcasting to (B, H, N, 1)."""
        if self.causal:
            return torch.arange(1, q.shape[2] + 1, device=q.device)[:, None]
        if context.padding is None:
            return q.new_full((), q.shape[2], dtype=torch.long)
        return context.padding.lengths.clamp(min=1)[:, None, None, None]

    def _mean_key(self, k: Tensor, context: Context) -> Tensor:
        """The mean key that each query knows of, broadcasting to (B, H, N, D)."""
        mean = running_mean(k) if self.causal else segment_mean(k, 1, context.padding)[0]
        return mean.repeat_interleave(self.heads // self.kv_heads, 1)


def _drawn(shape: tuple[int, ...], needed: bool) -> nn.Parameter | None:
    """Weights of each head within Xavier's bounds, where the options need them."""
    outputs = shape[2] if len(shape) > 2 else 1
    bound = (6 / (shape[1] + outputs)) ** 0.5
    return nn.Parameter(torch.empty(shape).uniform_(-bound, bound)) if needed else None
