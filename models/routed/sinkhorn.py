"""Attention to the own block and to a block that a learned sorting brought beside it."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor

from ..kernels.few import few_attention
from ..kernels.linear import full_precision
from ..mixer import Context, MixerSpec
from .sorted_blocks import SortedBlocks


class SinkhornAttention(SortedBlocks):
    """Blocks of keys and values are sorted softly, and each block attends to itself and to the one sorted to its place.

    Tay et al. 2020, arXiv 2002.11296. x (B, N, E) -> (B, N, E). How blocks are sorted, and its options, are
    ``SortedBlocks``'s. O(N^1.5 E) time, O(N^1.5) memory.
    Deviates: the causal form chooses among earlier blocks by softmax, since normalising columns would let later blocks
    enter. Where a row ends within a block, sorted tokens average what is real at their place, and weigh as much.
    """

    spec = MixerSpec(
        family="routed",
        paper="Sparse Sinkhorn Attention",
        arxiv="2002.11296",
        causal="exact",
        length="maximum",
        growth=1.5,
    )

    def forward(self, x: Tensor, context: Context) -> tuple[Tensor, Context]:
        """Score, normalise, sort, attend."""
        length, block = x.shape[1], min(self.block, x.shape[1])
        rest = -length % block
        valid = torch.ones(x.shape[:2], dtype=torch.bool, device=x.device)
        partial = bool(rest) and not self.causal
        # A real query of a right-padded causal row meets real keys only.
        if context.padding is not None and not self.causal:
            valid, partial, x = context.padding.valid, True, context.padding.zero(x)
        # Padded only where it must be: padding by nothing copies too.
        x = F.pad(x, (0, 0, 0, rest)) if rest else x
        real = F.pad(valid, (0, rest), value=self.causal).unflatten(1, (-1, block))
        # Keys and values are sorted and attended to: laid out once for both.
        q, *known = (part.unflatten(2, (-1, block)) for part in self.project(x))
        k, v = (part.contiguous() for part in known)
        with full_precision(x):
            share = self.filled(self.sorting(x.unflatten(1, (-1, block)), real.any(-1) if partial else None))
            held = real[:, None].to(share.dtype)
            keys, values = (
                self.brought(share, part * held[..., None].to(part.dtype) if partial else part) for part in (k, v)
            )
        if partial:
            least = torch.finfo(share.dtype).eps  # a smaller share weighs nothing, and dividing by it would overflow
            present = (share @ held / share.sum(-1, keepdim=True).clamp_min(least)).clamp_min(least)[..., None]
            keys, values = keys / present, values / present
            # The logarithm of its share joins a token's score through a channel of its own.
            q, k, v = F.pad(q, (0, 1), value=self.head_dim**0.5), F.pad(k, (0, 1)), F.pad(v, (0, 1))
            keys, values = torch.cat((keys, present.log()), -1), F.pad(values, (0, 1))
        far = keys.to(k.dtype), values.to(v.dtype)
        o = self.read(q, (k, v), far, real if partial or self.causal else None)
        return self.merge(o[:, :, :length, : self.head_dim]), context

    def filled(self, share: Tensor) -> Tensor:
        """The places that a block is brought to, of all (B, H, M, M)."""
        return share

    def read(self, q: Tensor, own: tuple[Tensor, Tensor], far: tuple[Tensor, Tensor], real: Tensor | None) -> Tensor:
        """Attention (B, H, N, D) of blocks q (B, H, M, b, D) to keys and values of their own and to sorted ones.

        ``real`` (B, M, b) are no padding; None where nothing is hidden.
        """
        mask = None if real is None else self._mask(real).repeat(1, self.heads, 1, 1)
        q, keys, values, own_keys, own_values = (part.flatten(1, 2) for part in (q, *far, *own))
        how = {"visible": mask, "scale": self.head_dim**-0.5, "dropout": self.drop_rate, "hold": self.training}
        o = few_attention(q, keys, values, beside=(own_keys, own_values), **how)
        return o.unflatten(1, (self.heads, -1)).flatten(2, 3)

    def _mask(self, real: Tensor) -> Tensor:
        """Which of the sorted and the own tokens each query sees, (B or 1, M, b or 1, 2b)."""
        if not self.causal:
            far = real.any(1, keepdim=True).expand(real.shape)
            return torch.cat((far, real), -1)[:, :, None]
        _, count, block = real.shape
        own = torch.ones(block, block, dtype=torch.bool, device=real.device).tril()
        far = torch.arange(count, device=real.device)[:, None, None] > 0
        return torch.cat((far.expand(count, block, block), own.expand(count, block, block)), -1)[None]
