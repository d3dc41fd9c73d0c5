"""Sinkhorn attention: each block attends to itself and to a block assigned to it by a learned soft permutation."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from lra_bench.contracts import UserError

from ..kernels.few import few_attention
from ..mixer import MixerSpec
from .sorted_blocks import SortedBlocks

JOINS = ("softmax", "sum")


class SinkhornAttention(SortedBlocks):
    """Attention of each block to itself and to the softly sorted block of keys and values at its position.

    Tay et al. 2020, arXiv 2002.11296. x (B, N, E) -> (B, N, E). ``SortedBlocks`` computes the soft permutation and
    documents the other options. O(N^1.5 E) time, O(N^1.5) memory.

    The defaults are those of the paper. The code of Long Range Arena (google-research/long-range-arena at cd31e5c,
    lra_benchmarks/models/sinkhorn_transformer/sinkhorn_attention.py) has ``join=sum``, ``scorer=linear`` and
    ``sort=softmax``, which ``protocol=lra`` uses.

    Deviations from the paper: the causal form is a softmax over earlier blocks, since the normalisation of columns
    would depend on later blocks. If a sequence ends within a block, a sorted token averages the real tokens at its
    position in the blocks, and its attention weight is multiplied by the fraction of real tokens.

    Deviations from the code of Long Range Arena: its einsum has no index that keys and weights share, so that every
    position receives the sum of all blocks, whatever their scores; and its blocks contain every M-th token of M blocks.
    Here blocks are averaged by their weights, and consist of consecutive tokens. Its causal form is not computed.

    Args:
        width: Model width E.
        heads: Number of heads H.
        block: Number of tokens b in a block; by default the square root of ``max_length``, rounded up to a multiple of
            8.
        iterations: Number of Sinkhorn iterations.
        temperature: Divisor of the scores, above 0.
        scorer: Layers that score blocks, ``network`` or ``linear``.
        sort: Normalisation of the scores, ``sinkhorn`` or ``softmax``.
        join: ``softmax`` for one softmax over the tokens of both blocks, or ``sum`` for the sum of the outputs of two
            attentions, one to each block.
        common: Options of ``HeadMixer``.

    Raises:
        UserError: If an option is out of range, or ``kv_heads`` differs from ``heads``.
    """

    spec = MixerSpec(
        family="routed",
        paper="Sparse Sinkhorn Attention",
        arxiv="2002.11296",
        code="google-research/long-range-arena@cd31e5c:lra_benchmarks/models/sinkhorn_transformer/sinkhorn_attention.py",
        causal="exact",
        length="maximum",
        growth=1.5,
    )

    def __init__(
        self,
        width: int,
        heads: int,
        *,
        block: int | None = None,
        iterations: int = 8,
        temperature: float = 0.75,
        scorer: str = "network",
        sort: str = "sinkhorn",
        join: str = "softmax",
        **common: Any,
    ) -> None:
        sorting: dict[str, Any] = {"temperature": temperature, "scorer": scorer, "sort": sort}
        super().__init__(width, heads, block=block, iterations=iterations, **sorting, **common)
        if join not in JOINS:
            raise UserError(f"model.mixer.join={join}: must be one of {', '.join(JOINS)}")
        self.join = join

    def restricts_from(self) -> int:
        """Return b + 1, the smallest length of two blocks; 2 b + 1 if causal, since the first block is sorted alone."""
        return 2 * self.block + 1 if self.causal else super().restricts_from()

    def read(self, q: Tensor, own: tuple[Tensor, Tensor], far: tuple[Tensor, Tensor], real: Tensor | None) -> Tensor:
        """Return the attention outputs (B, H, N, D) of blocks of queries to the sorted block and to their own.

        Arguments are those of ``SortedBlocks.read``.
        """
        visible = None if real is None else self._visible(real).repeat(1, self.heads, 1, 1)
        q, keys, values, own_keys, own_values = (part.flatten(1, 2) for part in (q, *far, *own))
        options = {"scale": self.head_dim**-0.5, "dropout": self.drop_rate, "hold": self.training}
        if self.join == "softmax":
            o = few_attention(q, keys, values, appended=(own_keys, own_values), visible=visible, **options)
        else:
            far_visible, own_visible = (None, None) if visible is None else visible.chunk(2, -1)
            o = few_attention(q, keys, values, visible=far_visible, **options)
            o = o + few_attention(q, own_keys, own_values, visible=own_visible, **options)
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
