"""H-Transformer-1D: attention to single tokens nearby and to means of more tokens farther away."""

from __future__ import annotations

from typing import Any

from torch import Tensor

from lra_bench.contracts import UserError

from ..kernels.hierarchy import hierarchical_attention
from ..mixer import Context, HeadMixer, MixerSpec


class HTransformer1D(HeadMixer):
    """Softmax attention whose matrix is exact near the diagonal and constant in cells that grow away from it.

    Zhu and Soricut 2021, arXiv 2107.11906. q (B, H, N, D), k and v (B, G, N, D) -> (B, H, N, D). O(N b D) time and
    memory; the causal form takes log N times as much. Each token attends to the single tokens of its own ``block`` of b
    tokens and of the adjacent blocks. At each further level, queries and keys are means over twice as many tokens, and
    each block attends to those parts of the adjacent blocks that no lower level covers. If queries, keys and values are
    constant within cells, or if N is at most two blocks, this equals full attention. Means are over real tokens only.
    Prefix positions are treated like tokens.

    Deviations from the paper: levels are combined by the logarithms of their sums, in which each cell counts its
    tokens, so that attention weights sum to one; the causal form does not average queries, because the mean would
    depend on later tokens.
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

    def restricts_from(self) -> int:
        """Return 2 b + 1, the smallest length of three blocks."""
        return 2 * self.block + 1

    def attend(self, q: Tensor, k: Tensor, v: Tensor, context: Context) -> Tensor:
        """Apply hierarchical attention over all levels."""
        return hierarchical_attention(
            q, k, v, block=self.block, causal=self.causal, padding=context.padding, dropout=self.drop_rate
        )
