"""Attention of all tokens to the few blocks that a learned sorting brought to the front."""

from __future__ import annotations

from typing import Any

from torch import Tensor

from lra_bench.contracts import UserError

from ..kernels.few import few_attention
from ..mixer import MixerSpec
from .sinkhorn import SinkhornAttention


class SortCut(SinkhornAttention):
    """Sinkhorn attention that sorts blocks softly and cuts the sorted row: every token attends to its beginning alone.

    Tay et al. 2020, arXiv 2002.11296. x (B, N, E) -> (B, N, E). ``budget`` is how many sorted blocks of ``block``
    tokens are kept; other options are those of ``SinkhornAttention``. O(N n b E) time and O(N E) memory with n blocks
    of b, beside the (N / b)^2 shares to normalise. Bidirectional, as the kept blocks hold tokens of the whole row.
    Deviates: where a row ends within a block, sorted tokens average what is real at their place, and weigh as much.
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
        **common: Any,
    ) -> None:
        super().__init__(width, heads, block=block, iterations=iterations, temperature=temperature, **common)
        if budget < 1:
            raise UserError(f"model.mixer.budget={budget}: must be at least 1")
        self.budget = budget

    def filled(self, share: Tensor) -> Tensor:
        """The first places (B, H, n, M)."""
        return share[:, :, : self.budget]

    def read(self, q: Tensor, own: tuple[Tensor, Tensor], far: tuple[Tensor, Tensor], real: Tensor | None) -> Tensor:
        """Attention (B, H, N, D) of all queries to the sorted blocks alone, which are empty beyond a row's blocks."""
        keys, values = (part.flatten(2, 3) for part in far)
        mask = None
        if real is not None:
            filled = real.any(-1, keepdim=True)[:, : self.budget] & real.any(1, keepdim=True)
            mask = filled.flatten(1)[:, None, None]
        scale = self.head_dim**-0.5
        return few_attention(q.flatten(2, 3), keys, values, visible=mask, scale=scale, dropout=self.drop_rate)
