"""Full softmax attention: the Transformer."""

from __future__ import annotations

from torch import Tensor

from ..kernels.rows import row_attention
from ..kernels.softmax import grouped, softmax_attention
from ..mixer import Context, HeadMixer, MixerSpec


class SoftmaxAttention(HeadMixer):
    """Every token weighs every other by the softmax of their scaled inner product.

    Vaswani et al. 2017, arXiv 1706.03762. q (B, H, N, D), k and v (B, G, N, D) -> (B, H, N, D).
    O(N^2 D) time; O(N D) memory, for the scores are never held whole, with dropout on their weights or without.
    Positions that change scores are computed for some rows at a time, and again in the backward pass.
    ``kv_heads`` below ``heads`` shares keys and values (Ainslie et al. 2023, arXiv 2305.13245).
    """

    spec = MixerSpec(
        family="full",
        paper="Attention Is All You Need",
        arxiv="1706.03762",
        causal="exact",
        equivariant=True,
        growth=2.0,
        positions=("embed", "rotate", "bias", "scores", "weight"),
        full_config={},
    )

    def attend(self, q: Tensor, k: Tensor, v: Tensor, context: Context) -> Tensor:
        """Softmax attention over all keys."""
        position, places, scale = self.position, context.positions, self.head_dim**-0.5
        if position is None or position.hooks <= {"embed", "rotate"}:
            return softmax_attention(q, k, v, padding=context.padding, causal=self.causal, dropout=self.drop_rate)

        def score(rows: Tensor, start: int, keys: int) -> Tensor:
            seen = k[:, :, :keys]
            plain = grouped(rows * scale, seen.mT)
            here = places[..., start : start + rows.shape[2]]
            return position.complete(plain, rows, seen, here, places[..., :keys])

        return row_attention(q, v, score, padding=context.padding, causal=self.causal, dropout=self.drop_rate)
