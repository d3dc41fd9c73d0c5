"""Rotary positions: queries and keys are turned, so that their product knows the distance."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any, Literal, get_args

import torch
from torch import Tensor

from lra_bench.contracts import UserError

from .grid import GridPosition

Scaling = Literal["none", "linear", "ntk", "yarn"]
FAST, SLOW = 32, 1  # rotations over the training length between which YaRN blends


class RotaryPosition(GridPosition):
    """Turns channels m and D/2 + m of queries and keys by the angle i · base^(−2m/D).

    Su et al. 2021, arXiv 2104.09864. O(N D) time, no parameters, any mixer of products of queries and keys.
    Deviates: pairs are halves apart instead of neighbours, the same up to an order of channels and faster.
    ``scaling`` says what happens to rows s times longer than ``train_length``, by default the task's:
    ``linear`` divides positions by s (Chen et al. 2023, arXiv 2306.15595); ``ntk`` multiplies the base by s^(D/(D−2));
    ``yarn`` divides only slow waves by s and multiplies scores by (0.1 ln s + 1)^2 (both in Peng et al. 2023,
    arXiv 2309.00071). Each row counts its own tokens, and shorter rows are as without. ``dimensions`` 2 turns the first
    half of the pairs by the line of an image and the second half by its column.
    """

    name = "rope"
    hooks = frozenset({"rotate"})

    def __init__(
        self,
        width: int,
        heads: int,
        max_length: int,
        *,
        base: float = 10_000.0,
        scaling: Scaling = "none",
        train_length: int | None = None,
        **common: Any,
    ) -> None:
        super().__init__(width, heads, max_length, **common)
        if scaling not in get_args(Scaling):
            raise UserError(f"position.scaling={scaling}: is none of {', '.join(get_args(Scaling))}")
        if scaling != "none" and not self._stretches:
            other = "dimensions=2" if self.dimensions == 2 else "random_positions"
            raise UserError(f"position.scaling={scaling}: cannot be joined with position.{other}; leave one out")
        if base <= 1:
            raise UserError(f"position.base={base}: must be above 1")
        self.base, self.scaling, self.train_length = base, scaling, train_length or max_length

    @property
    def by_length(self) -> bool:
        """Whether angles depend on how long a row is."""
        return self.scaling != "none"

    @property
    def _stretches(self) -> bool:
        """Whether positions count tokens alone, so that a longer row can be told by them."""
        return self.dimensions == 1 and self.random_positions is None

    def evaluation_knobs(self) -> Mapping[str, tuple[str, ...]]:
        """The other ways to scale."""
        others = tuple(kind for kind in get_args(Scaling) if kind != self.scaling)
        return {"position.scaling": others} if self._stretches else {}

    def rotate(self, q: Tensor, k: Tensor, q_positions: Tensor, k_positions: Tensor) -> tuple[Tensor, Tensor]:
        """q (B, H, N, D) and k (B, G, M, D), turned; the last channel of an odd D stays."""
        stretch = self._stretch(k_positions)
        pairs = q.shape[-1] // 2
        waves = self._waves(q_positions, pairs, stretch)
        return _turn(q, waves), _turn(
            k, waves if k_positions is q_positions else self._waves(k_positions, pairs, stretch)
        )

    def _stretch(self, positions: Tensor) -> Tensor | None:
        """How many times longer than the training length rows are: (1,) or (B, 1); None where none is longer."""
        if self.scaling == "none" or (positions.dim() == 1 and positions.shape[-1] <= self.train_length):
            return None
        return ((positions.amax(-1, keepdim=True) + 1).double() / self.train_length).clamp(min=1)

    def _waves(self, positions: Tensor, pairs: int, stretch: Tensor | None) -> tuple[Tensor, Tensor]:
        """Cosines and sines (..., N, pairs) of the angles; float64, for single precision loses digits far out."""
        counted = self.coordinates(positions).double()
        if stretch is None:
            shares = (pairs,) if len(counted) == 1 else (pairs - pairs // 2, pairs // 2)
            angles = torch.cat(
                [places[..., None] * self._rates(n, places) for places, n in zip(counted, shares, strict=True)], -1
            )
            return angles.cos(), angles.sin()
        rates, size = self._rates(pairs, counted), torch.ones_like(stretch)
        if self.scaling == "linear":
            rates = rates / stretch
        elif self.scaling == "ntk":
            rates = rates * stretch ** (-torch.arange(pairs, device=rates.device) / max(pairs - 1, 1))
        else:
            rotations = self.train_length * rates / (2 * math.pi)
            kept = ((rotations - SLOW) / (FAST - SLOW)).clamp(0, 1)
            rates, size = rates * (kept + (1 - kept) / stretch), 0.1 * stretch.log() + 1
        angles = counted[0][..., None] * rates[..., None, :]
        return angles.cos() * size[..., None], angles.sin() * size[..., None]

    def _rates(self, pairs: int, like: Tensor) -> Tensor:
        return self.base ** (-torch.arange(pairs, dtype=torch.float64, device=like.device) / max(pairs, 1))


def _turn(x: Tensor, waves: tuple[Tensor, Tensor]) -> Tensor:
    """x (B, H, N, D) with its pairs turned, in single precision or better."""
    precise = torch.promote_types(x.dtype, torch.float32)
    cos, sin = (wave.to(precise).unsqueeze(-3) for wave in waves)
    pairs = cos.shape[-1]
    a, b = x[..., :pairs], x[..., pairs : 2 * pairs]
    turned = [a * cos - b * sin, a * sin + b * cos, x[..., 2 * pairs :]]
    return torch.cat(turned if x.shape[-1] % 2 else turned[:2], -1).to(x.dtype)
