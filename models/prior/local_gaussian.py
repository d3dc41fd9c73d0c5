"""Localness: softmax attention with a Gaussian prior whose centre and width are predicted."""

from __future__ import annotations

from dataclasses import replace
from typing import Any, Literal

import torch
from torch import Tensor, nn

from lra_bench.contracts import UserError

from ..full.by_rows import Prior
from ..kernels.devices import uses_gpu_form
from ..kernels.linear import full_precision
from ..kernels.means import running_mean
from ..kernels.segments import segment_mean
from ..kernels.terms import gaussian_term
from ..mixer import Context
from .added_prior import AddedPrior

NARROWEST = 0.01
"""Minimum of σ in tokens; a single key then has all the weight, and a smaller σ could lead to a division by zero."""


class LocalGaussian(AddedPrior):
    """Subtract (j − P_i)² / 2σ_i² from the scores, with a centre P_i and a width 2σ_i predicted for each query.

    Yang et al. 2018, arXiv 1810.10182. q (B, H, N, D), k and v (B, G, N, D) -> (B, H, N, D). For each head,
    P_i = N sigmoid(u · tanh(W q_i)), with N the number of tokens of the sequence.

    ``window`` selects the width 2σ_i: a fixed number of tokens (10 in the paper); ``layer``, which is
    N sigmoid(u · tanh(W k)) with the mean key k and separate u and W; or ``query``, which is the formula of the centre
    with a separate u. The lowest ``layers`` layers have a prior; the others are full attention. Raises ``UserError`` if
    an option is invalid.

    W is (D, D) for each head, as in the paper; the authors' code has one W for all heads, which is H times larger.

    Deviation from the paper: there is a causal form, in which N is the number of tokens up to the query and k the mean
    of their keys.
    """

    spec = replace(
        AddedPrior.spec,
        paper="Modeling Localness for Self-Attention Networks",
        arxiv="1810.10182",
        code="baosongyang/Context-Aware-SAN@23d4e30:layers/attention.py",
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
        self.centre_hidden = _xavier(square, near)
        self.centre_read = _xavier(vector, near)
        self.width_hidden = _xavier(square, near and window == "layer")
        self.width_read = _xavier(vector, near and isinstance(window, str))

    def prior(self, q: Tensor, k: Tensor, context: Context) -> tuple[Prior, tuple[Tensor, ...]] | None:
        """Return the prior and the tensors it takes: centres and −1 / 2σ² of all queries, each (B, H, N, 1)."""
        if self.centre_hidden is None or self.centre_read is None:
            return None
        tokens, dtype, on_gpu = self._tokens(q, context), q.dtype, uses_gpu_form(q)
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
        positions = torch.arange(q.shape[2], device=q.device)

        def prior(start: int, queries: int, keys: int, centre: Tensor, steepness: Tensor) -> Tensor:
            if on_gpu:
                return gaussian_term(positions[:keys], centre, steepness, dtype)
            return (positions[:keys] - centre).square() * steepness

        return prior, (centre, steepness.expand_as(centre))

    def _tokens(self, q: Tensor, context: Context) -> Tensor:
        """Return the number of tokens N for each query, broadcastable to (B, H, N, 1)."""
        if self.causal:
            return torch.arange(1, q.shape[2] + 1, device=q.device)[:, None]
        if context.padding is None:
            return q.new_full((), q.shape[2], dtype=torch.long)
        return context.padding.lengths.clamp(min=1)[:, None, None, None]

    def _mean_key(self, k: Tensor, context: Context) -> Tensor:
        """Return the mean key for each query, broadcastable to (B, H, N, D)."""
        mean = running_mean(k) if self.causal else segment_mean(k, 1, context.padding)[0]
        return mean.repeat_interleave(self.heads // self.kv_heads, 1)


def _xavier(shape: tuple[int, ...], needed: bool) -> nn.Parameter | None:
    """Return Xavier-uniform weights of ``shape`` (heads, inputs[, outputs]), or None if not ``needed``."""
    outputs = shape[2] if len(shape) > 2 else 1
    bound = (6 / (shape[1] + outputs)) ** 0.5
    return nn.Parameter(torch.empty(shape).uniform_(-bound, bound)) if needed else None
