"""Attention to keys and values that are compressed by a strided convolution."""

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
    """Softmax attention to N / s keys and values, each computed by a convolution over a window of s tokens.

    Liu et al. 2018, arXiv 1801.10198. q (B, H, N, D), k and v (B, G, N, D) -> (B, H, N, D). ``stride`` is s, which is
    also the kernel size, so that windows do not overlap (3 in the paper, here 8). O(N^2 D / s + N D^2) time, O(N D)
    memory; s D^2 additional parameters for the keys of each head and as many for its values. With ``local_block`` (256
    in the paper) every other layer, starting with the first, attends within blocks of that many tokens instead:
    T-DMCA, the paper's stack.
    In the causal form a token attends to the windows before its own and, as in the authors' code, to the uncompressed
    first token, because tokens in the first window would otherwise have no keys. It does not attend to its own window.
    Padding is set to zero before the convolution, and windows that contain only padding are masked.

    Deviations from the paper: each head has its own convolution, without a bias, which would not change the attention
    weights.
    """

    spec = MixerSpec(
        family="compressed",
        paper="Generating Wikipedia by Summarizing Long Sequences",
        arxiv="1801.10198",
        code="tensorflow/tensor2tensor@bafdc1b:tensor2tensor/layers/common_attention.py",
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
            raise UserError(
                f"model.mixer.local_block={local_block}: must be at least 1; leave it out to disable local layers"
            )
        self.stride = stride
        self.local_block = local_block if self.layer % 2 == 0 else None
        if self.local_block is None:
            # Initialised such that compressed keys and values have about the scale of the originals.
            shape, std = (self.kv_heads, stride, self.head_dim, self.head_dim), (stride * self.head_dim) ** -0.5
            self.compress_key = nn.Parameter(std * torch.randn(shape))
            self.compress_value = nn.Parameter(std * torch.randn(shape))

    def restricts_from(self) -> int | None:
        """Return the smallest length of two blocks in a local layer, 2 if keys are compressed, None if they are not.

        If causal, the result is 2 for every ``stride``, because a token does not attend to its own window.
        """
        if self.local_block is not None:
            return self.local_block + 1
        return 2 if self.stride > 1 or self.causal else None

    def attend(self, q: Tensor, k: Tensor, v: Tensor, context: Context) -> Tensor:
        """Attend to the compressed keys, or within blocks if ``local_block`` is set."""
        padding, length = context.padding, q.shape[2]
        if self.local_block is not None:
            return within_blocks(
                q, k, v, block=self.local_block, causal=self.causal, padding=padding, dropout=self.drop_rate
            )
        if self.causal:
            # Folded query c attends to keys 0 to c: the first token and the c windows before its own.
            stop = (length - 1) // self.stride * self.stride
            keys, values = (
                torch.cat((x[:, :, :1], self._compress(x[:, :, :stop], kernel)), 2)
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
        """Convolve x (B, G, N, D) with ``kernel`` (G, s, D, D) to (B, G, S, D), with S = ⌈N / s⌉."""
        windows = F.pad(x, (0, 0, 0, -x.shape[2] % self.stride)).unflatten(2, (-1, self.stride))
        return torch.einsum("bgstd,gtde->bgse", windows, kernel)
