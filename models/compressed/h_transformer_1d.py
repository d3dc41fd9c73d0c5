"""Attention to tokens nearby, and to means of tokens that are the wider the farther away."""

from __future__ import annotations

from typing import Any

from torch import Tensor

from lra_bench.contracts import UserError

from ..kernels.hierarchy import hierarchical_attention
from ..mixer import Context, HeadMixer, MixerSpec


class HTransformer1D(HeadMixer):
    """Softmax attention whose matrix is exact near the diagonal and constant in cells that grow away from it.

    Zhu and Soricut 2021, arXiv 2107.11906. q (B, H, N, D), k and v (B, G, N, D) -> (B, H, N, D). O(N b D) time and
    memory, causal log N times as much. A token sees its own ``block``, b, and its neighbours token by token; at each
    further level queries and keys are means over twice as many tokens, and what no lower level has seen of the blocks
    beside is read from them. Where queries, keys and values are constant in cells, or N is at most two blocks, this is
    full attention. Means are those of real tokens. Prefix rows are ordinary rows.
    Deviates: levels are joined by the logarithms of their sums, in which a cell counts its tokens, so that weights sum
    to one; the causal form keeps queries token by token, for a mean of them would look ahead.
    """

    spec = MixerSpec(
        family="compressed",
        paper="H-Transformer-1D: Fast One-Dimensional Hierarchical Attention for Sequences",
        arxiv="2107.11906",
        causal="exact",
        positions=("embed", "rotate"),
        full_config={"block": 1_000_000},
    )

    def __init__(self, width: int, heads: int, *, block: int = 16, **common: Any) -> None:
        super().__init__(width, heads, **common)
        if block < 2 or block % 2:
            raise UserError(f"model.mixer.block={block}: must be even and at least 2")
        self.block = block

    def attend(self, q: Tensor, k: Tensor, v: Tensor, context: Context) -> Tensor:
        """Attention at every level."""
        return hierarchical_attention(
            q, k, v, block=self.block, causal=self.causal, padding=context.padding, dropout=self.drop_rate
        )
