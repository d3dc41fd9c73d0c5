"""Feature maps along random directions, which may be drawn anew as training goes on."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, ClassVar

import torch
from torch import Tensor

from lra_bench.contracts import UserError

from .directions import generator_of
from .feature_attention import FeatureAttention


class RandomFeatureMap(FeatureAttention):
    """Features along random directions, the buffer ``projection``, drawn anew every ``redraw_every`` steps, 0 never.

    A variant names its draws and defines ``draw``. Draws depend on seed, layer and step alone.
    """

    draws: ClassVar[str]
    projection: Tensor

    def __init__(self, width: int, heads: int, *, features: int, redraw_every: int, **common: Any) -> None:
        super().__init__(width, heads, **common)
        if features < 1:
            raise UserError(f"model.mixer.features={features}: must be at least 1")
        if redraw_every < 0:
            raise UserError(f"model.mixer.redraw_every={redraw_every}: must not be negative; 0 means never")
        self.count, self.redraw_every = features, redraw_every
        self.register_buffer("projection", self._drawn_at(0))

    def draw(self, generator: torch.Generator) -> Tensor:
        """New directions."""
        raise NotImplementedError(f"{type(self).__name__} defines no draw")

    def after_step(self, step: int, statistics: Mapping[str, Tensor]) -> None:
        """Draw new directions every ``redraw_every`` steps."""
        if self.redraw_every and (step + 1) % self.redraw_every == 0:
            self.projection.copy_(self._drawn_at(step + 1))

    def _drawn_at(self, step: int) -> Tensor:
        return self.draw(generator_of(self.draws, self.seed, self.layer, step)).to(torch.get_default_dtype())
