"""Random blocks of keys for each block of queries, sampled once."""

from __future__ import annotations

from typing import Any, ClassVar

import torch
from torch import Tensor

from lra_bench.contracts import UserError

from ..draws import generator_of
from ..kernels.tables import DRAW_BITS, distinct_ranks
from ..mixer import HeadMixer


class RandomBlocks(HeadMixer):
    """Base class of mixers in which blocks of ``block`` tokens attend to ``random_blocks`` random blocks, among others.

    Random blocks differ between layers, heads and blocks. Random integers are sampled once, from the seed, and stored
    in the buffer ``draws``. They are mapped to blocks when the number of available blocks is known; blocks beyond
    ``max_length`` reuse them. Raises ``UserError`` if an option is out of range, or ``kv_heads`` differs from
    ``heads``.
    """

    drawn_as: ClassVar[str]
    """Name of the random stream, defined by the subclass."""
    draws: Tensor

    def __init__(self, width: int, heads: int, *, block: int, random_blocks: int, **common: Any) -> None:
        super().__init__(width, heads, **common)
        if block < 1:
            raise UserError(f"model.mixer.block={block}: must be at least 1")
        if random_blocks < 0:
            raise UserError(f"model.mixer.random_blocks={random_blocks}: must not be negative")
        if self.kv_heads != heads:
            raise UserError(
                f"model.mixer.kv_heads={self.kv_heads}: heads attend to different blocks and cannot share keys; "
                "leave it out"
            )
        self.block, self.random_blocks = block, random_blocks
        generator = generator_of(self.drawn_as, self.seed, self.layer)
        shape = (heads, -(-self.max_length // block), random_blocks)
        self.register_buffer("draws", torch.randint(2**DRAW_BITS, shape, generator=generator))

    def ranks(self, available: Tensor) -> Tensor:
        """Return distinct random ranks (..., H, blocks, r) below ``available`` (..., 1, blocks), −1 if none is left."""
        blocks = available.shape[-1]
        index = torch.arange(blocks, device=available.device)
        return distinct_ranks(self.draws[:, index % self.draws.shape[1], :blocks], available)
