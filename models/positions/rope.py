"""Rotary positions: queries and keys are rotated, so that their inner product depends on the relative position."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any, Literal, get_args

import torch
from torch import Tensor

from lra_bench.contracts import UserError

from .grid import GridPosition

Scaling = Literal["none", "linear", "ntk", "yarn"]
FAST, SLOW = 32, 1
"""Rotations over the training length between which YaRN interpolates from unscaled to fully scaled frequencies."""


class RotaryPosition(GridPosition):
    """Rotate channels m and D/2 + m of queries and keys by the angle i · base^(−2m/D).

    Su et al. 2021, arXiv 2104.09864. O(N D) time, no parameters; for all mixers based on inner products of queries and
    keys. With ``scaling``, sequences s times longer than ``train_length`` use other angles, with s computed for each
    sequence from its own tokens; shorter sequences are unchanged.

    - ``linear`` divides positions by s (Chen et al. 2023, arXiv 2306.15595).
    - ``ntk`` multiplies the base by s^(D/(D−2)) (Peng et al. 2023, arXiv 2309.00071).
    - ``yarn`` divides only low frequencies by s and multiplies scores by (0.1 ln s + 1)^2 (Peng et al. 2023).

    Deviation from the paper: the channels of a pair are D/2 apart instead of adjacent, which is equivalent up to a
    permutation of channels and faster.

    Args:
        width: Model width E.
        heads: Number of attention heads H.
        max_length: Largest expected number of tokens in a sequence.
        base: Base of the geometric sequence of frequencies, above 1.
        scaling: One of none, linear, ntk, yarn.
        train_length: Number of tokens beyond which ``scaling`` acts; by default ``max_length``.
        common: Options of ``GridPosition``. ``dimensions=2`` rotates the first half of the pairs by the row of a pixel
            and the second half by its column.

    Raises:
        UserError: If an option has an invalid value, or ``scaling`` is combined with ``dimensions=2`` or
            ``random_positions``.
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
            raise UserError(f"position.scaling={scaling}: must be one of {', '.join(get_args(Scaling))}")
        if scaling != "none" and not self._is_scalable:
            other = "dimensions=2" if self.dimensions == 2 else "random_positions"
            raise UserError(f"position.scaling={scaling}: cannot be combined with position.{other}; leave one out")
        if base <= 1:
            raise UserError(f"position.base={base}: must be above 1")
        self.base, self.scaling, self.train_length = base, scaling, train_length or max_length

    @property
    def by_length(self) -> bool:
        """Whether angles depend on the sequence length."""
        return self.scaling != "none"

    @property
    def _is_scalable(self) -> bool:
        """Whether positions are token indices, so that they determine the length of a sequence."""
        return self.dimensions == 1 and self.random_positions is None

    def evaluation_knobs(self) -> Mapping[str, tuple[str, ...]]:
        """Return the other values of ``scaling``, which can be evaluated without training again."""
        others = tuple(kind for kind in get_args(Scaling) if kind != self.scaling)
        return {"position.scaling": others} if self._is_scalable else {}

    def rotate(self, q: Tensor, k: Tensor, q_positions: Tensor, k_positions: Tensor) -> tuple[Tensor, Tensor]:
        """Return q (B, H, N, D) and k (B, G, M, D), rotated; the last channel of an odd D is unchanged."""
        factor = self._scale_factor(k_positions)
        pairs = q.shape[-1] // 2
        waves = self._waves(q_positions, pairs, factor)
        return _rotate(q, waves), _rotate(
            k, waves if k_positions is q_positions else self._waves(k_positions, pairs, factor)
        )

    def _scale_factor(self, positions: Tensor) -> Tensor | None:
        """Return the factor s ≥ 1 by which sequences exceed the training length, (1,) or (B, 1).

        None if ``scaling`` is none or the shared positions (N,) do not exceed the training length.
        """
        if self.scaling == "none" or (positions.dim() == 1 and positions.shape[-1] <= self.train_length):
            return None
        return ((positions.amax(-1, keepdim=True) + 1).double() / self.train_length).clamp(min=1)

    def _waves(self, positions: Tensor, pairs: int, factor: Tensor | None) -> tuple[Tensor, Tensor]:
        """Return cosines and sines (..., N, pairs) of the angles.

        They are float64, because single precision loses digits of the angle at large positions.
        """
        axes = self.coordinates(positions).double()
        if factor is None:
            counts = (pairs,) if len(axes) == 1 else (pairs - pairs // 2, pairs // 2)
            angles = torch.cat(
                [places[..., None] * self._rates(n, places) for places, n in zip(axes, counts, strict=True)], -1
            )
            return angles.cos(), angles.sin()
        rates, size = self._rates(pairs, axes), torch.ones_like(factor)
        if self.scaling == "linear":
            rates = rates / factor
        elif self.scaling == "ntk":
            rates = rates * factor ** (-torch.arange(pairs, device=rates.device) / max(pairs - 1, 1))
        else:
            rotations = self.train_length * rates / (2 * math.pi)
            kept = ((rotations - SLOW) / (FAST - SLOW)).clamp(0, 1)
            rates, size = rates * (kept + (1 - kept) / factor), 0.1 * factor.log() + 1
        angles = axes[0][..., None] * rates[..., None, :]
        return angles.cos() * size[..., None], angles.sin() * size[..., None]

    def _rates(self, pairs: int, like: Tensor) -> Tensor:
        """Return the frequencies (pairs,) in radians per position, float64."""
        return self.base ** (-torch.arange(pairs, dtype=torch.float64, device=like.device) / max(pairs, 1))


def _rotate(x: Tensor, waves: tuple[Tensor, Tensor]) -> Tensor:
    """Return x (B, H, N, D) with its pairs of channels rotated, computed in single precision or better."""
    precise = torch.promote_types(x.dtype, torch.float32)
    cos, sin = (wave.to(precise).unsqueeze(-3) for wave in waves)
    pairs = cos.shape[-1]
    a, b = x[..., :pairs], x[..., pairs : 2 * pairs]
    rotated = [a * cos - b * sin, a * sin + b * cos, x[..., 2 * pairs :]]
    return torch.cat(rotated if x.shape[-1] % 2 else rotated[:2], -1).to(x.dtype)
