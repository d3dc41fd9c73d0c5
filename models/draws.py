"""Random numbers that are not weights: a function of seed, layer and step only."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from typing import Any, ClassVar

import torch
from torch import Tensor

from lra_bench.contracts import UserError

from .mixer import HeadMixer


def generator_of(name: str, seed: int, layer: int, step: int = 0) -> torch.Generator:
    """Return a random generator whose state depends only on the arguments."""
    digest = hashlib.blake2b(f"{name}/{seed}/{layer}/{step}".encode(), digest_size=7).digest()
    return torch.Generator().manual_seed(int.from_bytes(digest, "little"))


class RandomDirections(HeadMixer):
    """Base class of mixers that project on random directions, stored in the buffer ``directions``.

    Subclasses set ``draws``, implement ``draw``, and call ``begin`` once everything that ``draw`` needs is set. Raises
    ``UserError`` if ``redraw_every`` is negative.

    Args:
        width: Number of features E.
        heads: Number of heads H.
        redraw_every: Number of steps after which new directions are sampled; 0 for never.
        **common: Arguments of ``HeadMixer``.
    """

    draws: ClassVar[str]
    """Name of the random numbers, which separates their generator from others."""
    directions: Tensor

    def __init__(self, width: int, heads: int, *, redraw_every: int, **common: Any) -> None:
        super().__init__(width, heads, **common)
        if redraw_every < 0:
            raise UserError(
                f"model.mixer.redraw_every={redraw_every}: must be at least 0; 0 never samples new directions"
            )
        self.redraw_every = redraw_every

    def draw(self, generator: torch.Generator) -> Tensor:
        """Sample new directions."""
        raise NotImplementedError(f"{type(self).__name__} defines no draw")

    def begin(self) -> None:
        """Sample the initial directions and register them as a buffer."""
        self.register_buffer("directions", self._sample(0))

    def after_step(self, step: int, statistics: Mapping[str, Tensor]) -> None:
        """Sample new directions every ``redraw_every`` steps."""
        if self.redraw_every and (step + 1) % self.redraw_every == 0:
            sample = self._sample(step + 1)
            if self.directions.device.type == "cuda":
                sample = sample.pin_memory()  # otherwise the host waits for the copy
            self.directions.copy_(sample, non_blocking=True)

    def _sample(self, step: int) -> Tensor:
        return self.draw(generator_of(self.draws, self.seed, self.layer, step)).to(torch.get_default_dtype())
