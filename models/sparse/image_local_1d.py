"""Image Transformer, 1-D local attention: blocks of tokens attend to themselves and to adjacent tokens."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from lra_bench.contracts import UserError

from ..kernels.softmax import softmax_attention
from ..kernels.tiles import Tiles, tile_attention
from ..mixer import Context, HeadMixer, MixerSpec


class ImageLocal1d(HeadMixer):
    """Attention of all tokens of a block to the block and to the ``flange`` tokens on either side of it.

    The 1-D local attention of the Image Transformer (Parmar et al. 2018, arXiv 1802.05751) over pixels in raster order.
    If causal, the flange is only before the block, and tokens do not attend to later ones of their block.
    q (B, H, N, D), k and v (B, G, N, D) -> (B, H, N, D). For blocks of b = ``block`` tokens and a flange of f:
    O(N (b + 2f) D) time; O(N (1 + 2f / b) D) memory in addition to masks, and N (b + 2f) weights if they are dropped on
    CPU. Prefix rows are treated like tokens: a CLS row is in the first block. Raises ``UserError`` if an option is out
    of range.

    Deviations from the paper: the paper's decoder is causal; if the task is not, the flange is on both sides, as in the
    authors' tensor2tensor. Sequences that are not images are treated like pixels.
    """

    spec = MixerSpec(
        family="sparse",
        paper="Image Transformer",
        arxiv="1802.05751",
        code="tensorflow/tensor2tensor@bafdc1b:tensor2tensor/layers/common_attention.py",
        causal="exact",
        positions=("embed", "rotate"),
        full_config={"block": 1_000_000},
    )

    def __init__(self, width: int, heads: int, *, block: int = 64, flange: int = 32, **common: Any) -> None:
        super().__init__(width, heads, **common)
        if block < 1:
            raise UserError(f"model.mixer.block={block}: must be at least 1")
        if flange < 0:
            raise UserError(f"model.mixer.flange={flange}: must not be negative")
        self.block, self.flange = block, flange

    def restricts_from(self) -> int:
        """Return the smallest length at which the last block does not see the first token."""
        return (self.flange // self.block + 1) * self.block + 1

    def attend(self, q: Tensor, k: Tensor, v: Tensor, context: Context) -> Tensor:
        """Compute attention of blocks to themselves and their flanges."""
        length, block = q.shape[2], self.block
        # With right padding and a causal mask, no real query attends to padding.
        padding = None if self.causal else context.padding
        if block >= length:
            return softmax_attention(q, k, v, padding=padding, causal=self.causal, dropout=self.drop_rate)
        flange = min(self.flange, length)
        tiles = Tiles((1, length), (1, block), (0, flange), (0, 0 if self.causal else flange), q.device)
        keep = torch.ones(block, flange + block, dtype=torch.bool, device=q.device).tril(flange)
        return tile_attention(
            q, k, v, tiles, keep=keep if self.causal else None, padding=padding, dropout=self.drop_rate
        )
