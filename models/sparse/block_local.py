"""Block-local attention: softmax attention within blocks that do not overlap."""

from __future__ import annotations

from typing import Any

from torch import Tensor

from lra_bench.contracts import UserError

from ..kernels.patterns import within_blocks
from ..mixer import Context, HeadMixer, MixerSpec


class BlockLocal(HeadMixer):
    """Softmax attention of each token to the tokens of its block, or, if causal, to those that do not follow it.

    Block-local attention of Lin et al. 2021, arXiv 2106.04554: that of Qiu et al. 2020, arXiv 1911.02972, with the same
    block of keys in every head and blocks of b = ``block`` tokens. q (B, H, N, D), k and v (B, G, N, D) ->
    (B, H, N, D). O(N b D) time; O(N D) memory, and N b weights if they are dropped on CPU. No information crosses block
    borders at any depth. Prefix rows are treated like tokens: a CLS row attends only to the first block, so mean
    pooling is preferable. Raises ``UserError`` if ``block`` is below 1.

    Deviations from Qiu et al.: every head attends to its own block, and blocks have a fixed size instead of a fixed
    number (``Blockwise`` has shifted heads).
    """

    spec = MixerSpec(
        family="sparse",
        paper="Blockwise Self-Attention for Long Document Understanding",
        arxiv="1911.02972",
        causal="exact",
        positions=("embed", "rotate", "bias"),
        full_config={"block": 1_000_000},
    )

    def __init__(self, width: int, heads: int, *, block: int = 128, **common: Any) -> None:
        super().__init__(width, heads, **common)
        if block < 1:
            raise UserError(f"model.mixer.block={block}: must be at least 1")
        self.block = block

    def restricts_from(self) -> int:
        """Return b + 1, the smallest length of two blocks."""
        return self.block + 1

    def attend(self, q: Tensor, k: Tensor, v: Tensor, context: Context) -> Tensor:
        """Compute softmax attention within each block."""
        return within_blocks(
            q,
            k,
            v,
            block=self.block,
            bias=self.bias(context),
            causal=self.causal,
            padding=context.padding,
            dropout=self.drop_rate,
        )
