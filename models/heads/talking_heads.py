"""Attention whose heads talk to each other before the softmax and after it."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn

from lra_bench.contracts import UserError

from ..full.by_rows import attend_by_rows
from ..kernels.softmax import grouped, softmax_attention
from ..mixer import Context, HeadMixer, MixerSpec

NOISE = 0.02


class TalkingHeads(HeadMixer):
    """Scores are mixed over heads by a learned matrix, and so are the weights that softmax makes of them by another.

    Shazeer et al. 2020, arXiv 2003.02436. q, k, v (B, H, N, D) -> (B, H, N, D). Σ_h P_hs (q_h · k_h) is one inner
    product of mixed queries with all keys side by side, and mixed weights read all values side by side: exact, without
    a matrix of scores. O(S N^2 H D) time, H times that of attention; O(S N H D) memory. ``softmax_heads`` is S, by
    default H. What a position adds to scores is added after they are mixed. Weights are dropped before they are mixed.
    Deviates: the matrices begin near the identity, where the paper draws them at random.
    """

    spec = MixerSpec(
        family="heads",
        paper="Talking-Heads Attention",
        arxiv="2003.02436",
        causal="exact",
        equivariant=True,
        growth=2.0,
        positions=("embed", "rotate", "bias"),
    )

    def __init__(self, width: int, heads: int, *, softmax_heads: int | None = None, **common: Any) -> None:
        super().__init__(width, heads, **common)
        count = heads if softmax_heads is None else softmax_heads
        if count < 1:
            raise UserError(f"model.mixer.softmax_heads={count}: must be at least 1")
        if self.kv_heads != heads:
            raise UserError("model.mixer.kv_heads: every head's keys take part in all scores; leave it out")
        if count != heads and self.position is not None and "bias" in self.position.hooks:
            raise UserError(f"model.mixer.softmax_heads={count}: position={self.position.name} biases {heads} heads")
        same = (torch.arange(count) % heads == torch.arange(heads)[:, None]).to(torch.get_default_dtype())
        self.mix_scores = nn.Parameter(same + NOISE * torch.randn(heads, count))
        shares = (same / same.sum(1, keepdim=True).clamp(min=1)).T
        self.mix_weights = nn.Parameter(shares + NOISE * torch.randn(count, heads))

    def attend(self, q: Tensor, k: Tensor, v: Tensor, context: Context) -> Tensor:
        """Softmax heads, each with queries mixed for it, on keys and values of all heads side by side."""
        mixed = (q.transpose(1, 2)[:, None] * self.mix_scores.T[:, None, :, None]).flatten(3).to(q.dtype)
        keys, values = (x.transpose(1, 2).flatten(2)[:, None] for x in (k, v))
        if self.position is None or "bias" not in self.position.hooks:
            # Expanded, since not every fused kernel lets heads share their keys.
            o = softmax_attention(
                mixed,
                *(x.expand(-1, mixed.shape[1], -1, -1) for x in (keys, values)),
                padding=context.padding,
                causal=self.causal,
                scale=self.head_dim**-0.5,
                dropout=self.drop_rate,
            )
        else:
            o = attend_by_rows(self, q, k, values, context, self._products, (mixed, keys))
        read = o.unflatten(-1, (self.heads, -1))
        return (read * self.mix_weights[:, None, :, None]).sum(1).transpose(1, 2).to(v.dtype)

    def _products(self, q: Tensor, k: Tensor) -> Tensor:
        return grouped(q * self.head_dim**-0.5, k.mT)
