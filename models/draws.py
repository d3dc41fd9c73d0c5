"""Random draws that are no weights: a function of seed, layer and step alone."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from typing import Any, ClassVar

import torch
from torch import Tensor

from lra_bench.contracts import UserError

from .mixer import HeadMixer


def generator_of(name: str, seed: int, layer: int, step: int = 0) -> torch.Generator:
    """A generator that depends on nothing but its arguments."""
    digest = hashlib.blake2b(f"{name}/{seed}/{layer}/{step}".encode(), digest_size=7).digest()
    return torch.Generator().manual_seed(int.from_bytes(digest, "little"))


class RandomDirections(HeadMixer):
    """A mixer along random directions, the buffer ``directions``, drawn anew every ``redraw_every`` steps, 0 never.

    A variant names its ``draws``, defines ``draw``, and calls ``begin`` once it knows what ``draw`` needs.
    Raises ``UserError`` where ``redraw_every`` is negative.
    """

    draws: ClassVar[str]
    directions: Tensor

    def __init__(self, width: int, heads: int, *, redraw_every: int, **common: Any) -> None:
        super().__init__(width, heads, **common)
        if redraw_every < 0:
            raise UserError(f"model.mixer.redraw_every={redraw_every}: must not be negative; 0 means never")
        self.redraw_every = redraw_every

    def draw(self, generator: torch.Generator) -> Tensor:
        """New directions."""
        raise NotImplementedError(f"{type(self).__name__} defines no draw")

    def begin(self) -> None:
        """Draw the directions that hold from the first step on."""
        self.register_buffer("directions", self._drawn_at(0))

    def after_step(self, step: int, statistics: Mapping[str, Tensor]) -> None:
        """Draw new directions every ``redraw_every`` steps."""
        if self.redraw_every and (step + 1) % self.redraw_every == 0:
            self.directions.copy_(self._drawn_at(step + 1))

    def _drawn_at(self, step: int) -> Tensor:
        return self.draw(generator_of(self.draws, self.seed, self.layer, step)).to(torch.get_default_dtype())
