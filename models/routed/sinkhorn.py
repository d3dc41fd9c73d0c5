"""Sinkhorn attention: each block attends to itself and to a block assigned to it by a learned soft permutation."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor

from ..kernels.few import few_attention
from ..kernels.linear import full_precision
from ..mixer import Context, MixerSpec
from .sorted_blocks import SortedBlocks


class SinkhornAttention(SortedBlocks):
    """Attention of each block to itself and to the softly sorted block of keys and values at its position.

    Tay et al. 2020, arXiv 2002.11296. x (B, N, E) -> (B, N, E). ``SortedBlocks`` computes the soft permutation and
    defines its options. O(N^1.5 E) time, O(N^1.5) memory.

    Deviations from the paper: the causal form is a softmax over earlier blocks, since the normalisation of columns
    would depend on later blocks. If a sequence ends within a block, a sorted token averages the real tokens at its
    position in the blocks, and its attention weight is multiplied by the fraction of real tokens.
    """

    spec = MixerSpec(
        family="routed",
        paper="Sparse Sinkhorn Attention",
        arxiv="2002.11296",
        causal="exact",
        length="maximum",
        growth=1.5,
    )

    def restricts_from(self) -> int:
        """Return b + 1, the smallest length of two blocks; 2 b + 1 if causal, since the first block is sorted alone."""
        return 2 * self.block + 1 if self.causal else super().restricts_from()

    def forward(self, x: Tensor, context: Context) -> tuple[Tensor, Context]:
        """Compute the soft permutation, sort keys and values, attend and merge."""
        length, block = x.shape[1], min(self.block, x.shape[1])
        rest = -length % block
        valid = torch.ones(x.shape[:2], dtype=torch.bool, device=x.device)
        partial = bool(rest) and not self.causal
        # With right padding and a causal mask, no real query attends to padding.
        if context.padding is not None and not self.causal:
            valid, partial, x = context.padding.valid, True, context.padding.zero(x)
        # F.pad copies even if it adds nothing.
        x = F.pad(x, (0, 0, 0, rest)) if rest else x
        real = F.pad(valid, (0, rest), value=self.causal).unflatten(1, (-1, block))
        # Keys and values are both sorted and attended to: make them contiguous once.
        q, *kv = (part.unflatten(2, (-1, block)) for part in self.project(x))
        k, v = (part.contiguous() for part in kv)
        with full_precision(x):
            share = self.filled(self.sorting(x.unflatten(1, (-1, block)), real.any(-1) if partial else None))
            mask = real[:, None].to(share.dtype)
            keys, values = (
                self.brought(share, part * mask[..., None].to(part.dtype) if partial else part) for part in (k, v)
            )
        if partial:
            # Smaller fractions have no effect, and dividing by them would overflow.
            least = torch.finfo(share.dtype).eps
            fraction = (share @ mask / share.sum(-1, keepdim=True).clamp_min(least)).clamp_min(least)[..., None]
            keys, values = keys / fraction, values / fraction
            # An additional channel adds the logarithm of the fraction of real tokens to the score of a sorted token.
            q, k, v = F.pad(q, (0, 1), value=self.head_dim**0.5), F.pad(k, (0, 1)), F.pad(v, (0, 1))
            keys, values = torch.cat((keys, fraction.log()), -1), F.pad(values, (0, 1))
        far = keys.to(k.dtype), values.to(v.dtype)
        o = self.read(q, (k, v), far, real if partial or self.causal else None)
        return self.merge(o[:, :, :length, : self.head_dim]), context

    def filled(self, share: Tensor) -> Tensor:
        """Return the rows of the soft permutation (B, H, M, M) for the positions to fill; here all of them."""
        return share

    def read(self, q: Tensor, own: tuple[Tensor, Tensor], far: tuple[Tensor, Tensor], real: Tensor | None) -> Tensor:
        """Return the attention outputs (B, H, N, D) of blocks of queries.

        Args:
            q: Queries (B, H, M, b, D) in M blocks of b tokens.
            own: Keys and values of the blocks of the queries, each (B, H, M, b, D).
            far: Sorted keys and values, each (B, H, M, b, D).
            real: Mask (B, M, b) of tokens that are not padding; None if nothing is masked.

        Returns:
            Outputs (B, H, N, D), with N = M b.
        """
        visible = None if real is None else self._visible(real).repeat(1, self.heads, 1, 1)
        q, keys, values, own_keys, own_values = (part.flatten(1, 2) for part in (q, *far, *own))
        options = {"visible": visible, "scale": self.head_dim**-0.5, "dropout": self.drop_rate, "hold": self.training}
        o = few_attention(q, keys, values, appended=(own_keys, own_values), **options)
        return o.unflatten(1, (self.heads, -1)).flatten(2, 3)

    def _visible(self, real: Tensor) -> Tensor:
        """Return a mask (B or 1, M, b or 1, 2b) of visible keys: b of the sorted block, then b of the query's block."""
        if not self.causal:
            far = real.any(1, keepdim=True).expand(real.shape)
            return torch.cat((far, real), -1)[:, :, None]
        _, count, block = real.shape
        own = torch.ones(block, block, dtype=torch.bool, device=real.device).tril()
        far = torch.arange(count, device=real.device)[:, None, None] > 0
        return torch.cat((far.expand(count, block, block), own.expand(count, block, block)), -1)[None]
