"""Forgetting Transformer: softmax attention with scores reduced by forget gates between query and key."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from ..feedforward import linear
from ..full.by_rows import Prior
from ..kernels.devices import uses_gpu_form
from ..kernels.linear import full_precision
from ..kernels.terms import difference_term
from ..mixer import Context
from .added_prior import AddedPrior


class Forgetting(AddedPrior):
    """Add Σ log f_t to each score, over the tokens t after the key up to the query, with gates f_t = σ(w · x_t + b).

    FoX, Lin et al. 2025, arXiv 2503.02130. x (B, N, E) -> (B, N, E). Each head has its own gate. Attention is exact:
    O(N^2 D) time, O(N D) memory, with scores computed for slices of queries and again in the backward pass. With
    constant gates the prior is that of ALiBi. As in the paper, the model configuration uses no position encoding.

    Deviations from the paper: there is no output gate, no normalisation and no shift of keys and values (the Pro block
    of the paper); it is the paper's Transformer with forget gates. In the bidirectional form, which is not in the
    paper, keys after the query have separate gates and their sum runs over the tokens from the query to the one before
    the key; each direction equals the form of the paper, read in that direction.
    """

    spec = replace(
        AddedPrior.spec,
        paper="Forgetting Transformer: Softmax Attention with a Forget Gate",
        arxiv="2503.02130",
        code="zhixuan-lin/forgetting-transformer@883f260:src/forgetting_transformer/ops/forgetting_attention.py",
    )
    shows_heads = True

    def __init__(self, width: int, heads: int, **common: Any) -> None:
        super().__init__(width, heads, **common)
        self.forget = linear(width, heads if self.causal else 2 * heads)

    def forward(self, x: Tensor, context: Context) -> tuple[Tensor, Context]:
        """Project, attend with the prior computed from x, and merge."""
        q, k, v = self.project(x)
        o = self.attend_with(*self.forgotten(x, q.dtype, context), q, k, v, context)
        return self.finish(o, q, k, v, context)

    def forgotten(self, x: Tensor, dtype: torch.dtype, context: Context) -> tuple[Prior, tuple[Tensor, ...]]:
        """Return the prior and cumulative sums of log f, (B, H, N, 1) if causal and (B, H, N, 2) if bidirectional.

        The prior is in single or double precision, on GPUs in ``dtype``.
        """
        with full_precision(x):
            gates = self.forget(x if x.dtype.itemsize >= 4 else x.float())
            kept = F.logsigmoid(gates if context.padding is None else context.padding.zero(gates))
            # Double precision, because the prior consists of small differences of large cumulative sums.
            kept = kept.double().unflatten(-1, (-1, self.heads)).permute(0, 3, 1, 2)
            sums = kept.cumsum(2)
            if not self.causal:
                # For later keys: negated sums that exclude their own token, so that own − key is the sum in between.
                sums = torch.stack((sums[..., 0], kept[..., 1] - sums[..., 1]), -1)
        on_gpu = uses_gpu_form(x)
        keys, precise = sums.transpose(2, 3), torch.promote_types(x.dtype, torch.float32)

        def prior(start: int, queries: int, count: int, own: Tensor) -> Tensor:
            # Relative to the first query of the slice, so that single precision is sufficient.
            first = sums[:, :, start : start + 1].detach()
            own, others = (own - first).to(precise), (keys[..., :count] - first.mT).to(precise)
            if on_gpu:
                return difference_term(own, others, start, dtype)
            before = own[..., :1] - others[:, :, :1]
            if self.causal:
                return before
            after = own[..., 1:] - others[:, :, 1:]
            places = torch.arange(count, device=x.device)
            return torch.where(places > places[start : start + queries, None], after, before)

        return prior, (sums,)
