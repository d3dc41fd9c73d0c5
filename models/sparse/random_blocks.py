"""Random blocks of keys for each block of queries, a graph that is drawn once."""

from __future__ import annotations

from typing import Any, ClassVar

import torch
from torch import Tensor

from lra_bench.contracts import UserError

from ..draws import generator_of
from ..kernels.tables import DRAW_BITS, distinct_ranks
from ..mixer import HeadMixer


class RandomBlocks(HeadMixer):
    """A mixer of blocks of ``block`` tokens, each of which sees ``random_blocks`` random ones among others.

    They differ by layer, head and block. Draws are made once, kept in the buffer ``draws``, and become blocks where it
    is known how many there are to choose from; beyond ``max_length`` they repeat. A variant names what they are
    ``drawn_as``. Raises ``UserError`` where an option does not fit.
    """

    drawn_as: ClassVar[str]
    draws: Tensor

    def __init__(self, width: int, heads: int, *, block: int, random_blocks: int, **common: Any) -> None:
        super().__init__(width, heads, **common)
        if block < 1:
            raise UserError(f"model.mixer.block={block}: must be at least 1")
        if random_blocks < 0:
            raise UserError(f"model.mixer.random_blocks={random_blocks}: must not be negative")
        if self.kv_heads != heads:
            raise UserError("model.mixer.kv_heads: heads see different blocks, so they share no keys; leave it out")
        self.block, self.random_blocks = block, random_blocks
        generator = generator_of(self.drawn_as, self.seed, self.layer)
        shape = (heads, -(-self.max_length // block), random_blocks)
        self.register_buffer("draws", torch.randint(2**DRAW_BITS, shape, generator=generator))

    def ranks(self, available: Tensor) -> Tensor:
        """Distinct ranks (..., H, blocks, r) below ``available`` (..., 1, blocks), −1 where there are no more."""
        blocks = available.shape[-1]
        own = torch.arange(blocks, device=available.device)
        return distinct_ranks(self.draws[:, own % self.draws.shape[1], :blocks], available)
