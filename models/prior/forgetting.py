"""Attention that forgets: scores fall by what gates between two tokens let go."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from ..feedforward import linear
from ..full.by_rows import Prior
from ..kernels.linear import full_precision
from ..mixer import Context
from .added_prior import AddedPrior


class Forgetting(AddedPrior):
    """Each score has Σ log f_t added, over the tokens t after its key up to its query, f_t = σ(w · x_t + b) by head.

    FoX, Lin et al. 2025, arXiv 2503.02130. x (B, N, E) -> (B, N, E). Attention as exact as a Transformer's: O(N^2 D)
    time, O(N D) memory, by rows of scores that are computed again in the backward pass. A gate that is constant is
    ALiBi; the paper has no position beside the gates, and nor has the model file.
    The bidirectional form, which is ours, forgets on either side, with gates of its own for keys that come after: over
    the tokens from the query to the one before its key. Each side alone is the paper's, in its order of reading.
    Deviates: no output gate, no norm and no shift of keys and values (the paper's Pro block); it is the paper's
    Transformer with forget gates alone.
    """

    spec = replace(
        AddedPrior.spec,
        paper="Forgetting Transformer: Softmax Attention with a Forget Gate",
        arxiv="2503.02130",
    )
    shows_heads = True

    def __init__(self, width: int, heads: int, **common: Any) -> None:
        super().__init__(width, heads, **common)
        self.forget = linear(width, heads if self.causal else 2 * heads)

    def forward(self, x: Tensor, context: Context) -> tuple[Tensor, Context]:
        """Project, attend, merge; gates come from x."""
        q, k, v = self.project(x)
        o = self.attend_with(*self.forgotten(x, context), q, k, v, context)
        return self.finish(o, q, k, v, context)

    def forgotten(self, x: Tensor, context: Context) -> tuple[Prior, tuple[Tensor, ...]]:
        """The prior, from sums of log f (B, H, N, 1), and (B, H, N, 2) where both directions are seen."""
        with full_precision(x):
            gates = self.forget(x if x.dtype.itemsize >= 4 else x.float())
            kept = F.logsigmoid(gates if context.padding is None else context.padding.zero(gates))
            # Double: what matters are differences of neighbours, far from where the sums begin.
            kept = kept.double().unflatten(-1, (-1, self.heads)).permute(0, 3, 1, 2)
            sums = kept.cumsum(2)
            if not self.causal:
                # Of keys after the query, up to the one before the key: sums without their own token, turned round.
                sums = torch.stack((sums[..., 0], kept[..., 1] - sums[..., 1]), -1)
        keys, precise = sums.transpose(2, 3), torch.promote_types(x.dtype, torch.float32)

        def prior(start: int, queries: int, count: int, own: Tensor) -> Tensor:
            # As seen from the first of these queries, so that single precision is enough.
            first = sums[:, :, start : start + 1].detach()
            own, others = (own - first).to(precise), (keys[..., :count] - first.mT).to(precise)
            before = own[..., :1] - others[:, :, :1]
            if self.causal:
                return before
            after = own[..., 1:] - others[:, :, 1:]
            places = torch.arange(count, device=x.device)
            return torch.where(places > places[start : start + queries, None], after, before)

        return prior, (sums,)
