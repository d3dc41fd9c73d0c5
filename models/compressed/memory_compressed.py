"""Attention to keys and values that a strided convolution has compressed."""

from __future__ import annotations

from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from lra_bench.contracts import UserError

from ..kernels.coarse import by_window, from_window
from ..kernels.patterns import within_blocks
from ..kernels.softmax import softmax_attention
from ..mixer import Context, HeadMixer, MixerSpec


class MemoryCompressed(HeadMixer):
    """Softmax attention of every token to N / s keys and values, convolutions of s tokens each without overlap.

    Liu et al. 2018, arXiv 1801.10198. q (B, H, N, D), k and v (B, G, N, D) -> (B, H, N, D). ``stride`` is s, the width
    of the kernels too (the paper's 3, here 8). O(N^2 D / s + N s D^2) time, O(N D) memory; s D^2 parameters more for
    each head's keys and for its values. With ``local_block``, the paper's 256, every other layer, beginning with the
    first, attends instead within blocks of so many tokens: T-DMCA, the paper's stack.
    Causally a token sees the windows before its own and, as in the authors' code, the first token of the row as it is,
    for those in the first window would see nothing; what stands in its own window it does not see.
    Padding is zero before it is convolved, and windows of padding alone are not seen.
    Deviates: heads are convolved each by itself, without a bias, which scores would not notice.
    """

    spec = MixerSpec(
        family="compressed",
        paper="Generating Wikipedia by Summarizing Long Sequences",
        arxiv="1801.10198",
        causal="exact",
        growth=2.0,
    )

    def __init__(
        self, width: int, heads: int, *, stride: int = 8, local_block: int | None = None, **common: Any
    ) -> None:
        super().__init__(width, heads, **common)
        if stride < 1:
            raise UserError(f"model.mixer.stride={stride}: must be at least 1")
        if local_block is not None and local_block < 1:
            raise UserError(f"model.mixer.local_block={local_block}: must be at least 1, or be left out")
        self.stride = stride
        self.local_block = local_block if self.layer % 2 == 0 else None
        if self.local_block is None:
            # Compressed rows begin about as large as the rows themselves.
            shape, deviation = (self.kv_heads, stride, self.head_dim, self.head_dim), (stride * self.head_dim) ** -0.5
            self.compress_key = nn.Parameter(deviation * torch.randn(shape))
            self.compress_value = nn.Parameter(deviation * torch.randn(shape))

    def attend(self, q: Tensor, k: Tensor, v: Tensor, context: Context) -> Tensor:
        """Attention to the compressed, or within blocks."""
        padding, length = context.padding, q.shape[2]
        if self.local_block is not None:
            return within_blocks(
                q, k, v, block=self.local_block, causal=self.causal, padding=padding, dropout=self.drop_rate
            )
        if self.causal:
            # Row c of the folded queries sees keys up to c: the first token and the c windows before its own.
            before = (length - 1) // self.stride * self.stride
            keys, values = (
                torch.cat((x[:, :, :1], self._compress(x[:, :, :before], kernel)), 2)
                for x, kernel in ((k, self.compress_key), (v, self.compress_value))
            )
            folded = by_window(q, self.stride)
            o = softmax_attention(folded, keys, values, causal=True, dropout=self.drop_rate)
            return from_window(o, self.stride, length)
        visible = None
        if padding is not None:
            k, v = padding.zero_heads(k), padding.zero_heads(v)
            visible = padding.valid[:, None, None, :: self.stride]
        keys, values = self._compress(k, self.compress_key), self._compress(v, self.compress_value)
        return softmax_attention(q, keys, values, visible=visible, dropout=self.drop_rate)

    def _compress(self, x: Tensor, kernel: Tensor) -> Tensor:
        """x (B, G, N, D) with ``kernel`` (G, s, D, D) to (B, G, S, D)."""
        windows = F.pad(x, (0, 0, 0, -x.shape[2] % self.stride)).unflatten(2, (-1, self.stride))
        return torch.einsum("bgstd,gtde->bgse", windows, kernel)
