"""Talking-heads attention: heads are mixed before and after the softmax."""

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
    """Attention with learned matrices that mix scores over heads before the softmax and weights after it.

    Shazeer et al. 2020, arXiv 2003.02436. q, k, v (B, H, N, D) -> (B, H, N, D). The mixed score Σ_h P_hs (q_h · k_h) is
    the inner product of scaled queries with the concatenated keys of all heads, and mixed weights apply to the
    concatenated values: exact, without storing a score matrix. O(S N^2 H D) time, H times that of attention for S = H;
    O(S N H D) memory. ``softmax_heads`` is S, by default H. A position's bias is added after scores are mixed. Dropout
    is applied to weights before they are mixed.

    Deviations from the paper: the matrices are initialised near the identity, in the paper at random.
    """

    spec = MixerSpec(
        family="heads",
        paper="Talking-Heads Attention",
        arxiv="2003.02436",
        code="tensorflow/mesh@da90793:mesh_tensorflow/transformer/transformer_layers.py",
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
            raise UserError(
                "model.mixer.kv_heads: the keys of each head contribute to the scores of all heads; leave it out"
            )
        if count != heads and self.position is not None and "bias" in self.position.hooks:
            raise UserError(
                f"model.mixer.softmax_heads={count}: position={self.position.name} has biases for {heads} heads; "
                "leave softmax_heads out"
            )
        identity = (torch.arange(count) % heads == torch.arange(heads)[:, None]).to(torch.get_default_dtype())
        self.mix_scores = nn.Parameter(identity + NOISE * torch.randn(heads, count))
        averaging = (identity / identity.sum(1, keepdim=True).clamp(min=1)).T
        self.mix_weights = nn.Parameter(averaging + NOISE * torch.randn(count, heads))

    def restricts_from(self) -> int | None:
        """Return None: every token attends to all visible tokens."""
        return None

    def attend(self, q: Tensor, k: Tensor, v: Tensor, context: Context) -> Tensor:
        """Attend from the queries mixed for each softmax head to the concatenated keys and values of all heads."""
        mixed = (q.transpose(1, 2)[:, None] * self.mix_scores.T[:, None, :, None]).flatten(3).to(q.dtype)
        keys, values = (x.transpose(1, 2).flatten(2)[:, None] for x in (k, v))
        if self.position is None or "bias" not in self.position.hooks:
            # Expanded, because not every fused kernel supports keys that are shared by heads.
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
