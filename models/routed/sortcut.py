"""SortCut: attention of all tokens to the first blocks of a softly sorted sequence."""

from __future__ import annotations

from typing import Any

from torch import Tensor

from lra_bench.contracts import UserError

from ..kernels.few import few_attention
from ..mixer import MixerSpec
from .sorted_blocks import SortedBlocks


class SortCut(SortedBlocks):
    """Sinkhorn attention in which every token attends only to the first n blocks of the softly sorted sequence.

    Tay et al. 2020, arXiv 2002.11296. x (B, N, E) -> (B, N, E). O(N n b E) time and O(N E) memory for blocks of b
    tokens, in addition to the (N / b)^2 entries of the soft permutation. Bidirectional only, since the kept blocks
    contain tokens of the entire sequence.

    Deviation from the paper: if a sequence ends within a block, a sorted token averages the real tokens at its position
    in the blocks, and its attention weight is multiplied by the fraction of real tokens.

    Args:
        width: Model width E.
        heads: Number of heads H.
        block: Number of tokens b in a block.
        budget: Number n of sorted blocks to keep.
        iterations: Number of Sinkhorn iterations.
        temperature: Divisor of the scores, above 0.
        scorer: Layers that score blocks, ``network`` or ``linear``.
        sort: Normalisation of the scores, ``sinkhorn`` or ``softmax``.
        common: Options of ``HeadMixer``.

    Raises:
        UserError: If an option is out of range.
    """

    spec = MixerSpec(
        family="routed",
        paper="Sparse Sinkhorn Attention",
        arxiv="2002.11296",
        length="maximum",
        full_config={"block": 1_000_000},
    )

    def __init__(
        self,
        width: int,
        heads: int,
        *,
        block: int = 64,
        budget: int = 2,
        iterations: int = 8,
        temperature: float = 0.75,
        scorer: str = "network",
        sort: str = "sinkhorn",
        **common: Any,
    ) -> None:
        sorting: dict[str, Any] = {"temperature": temperature, "scorer": scorer, "sort": sort}
        super().__init__(width, heads, block=block, iterations=iterations, **sorting, **common)
        if budget < 1:
            raise UserError(f"model.mixer.budget={budget}: must be at least 1")
        self.budget = budget

    def filled(self, share: Tensor) -> Tensor:
        """Return the rows of the soft permutation for the first n positions, (B, H, n, M)."""
        return share[:, :, : self.budget]

    def read(self, q: Tensor, own: tuple[Tensor, Tensor], far: tuple[Tensor, Tensor], real: Tensor | None) -> Tensor:
        """Return the attention outputs (B, H, N, D) of all queries over the sorted blocks.

        Arguments are those of ``SortedBlocks.read``; ``own`` is unused. Positions beyond the blocks of a sequence
        are masked.
        """
        keys, values = (part.flatten(2, 3) for part in far)
        mask = None
        if real is not None:
            filled = real.any(-1, keepdim=True)[:, : self.budget] & real.any(1, keepdim=True)
            mask = filled.flatten(1)[:, None, None]
        scale = self.head_dim**-0.5
        return few_attention(q.flatten(2, 3), keys, values, visible=mask, scale=scale, dropout=self.drop_rate)
