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
FAST = 32
"""Rotations over the training length from which YaRN leaves the frequency of a pair of channels unchanged."""
SLOW = 1
"""Rotations over the training length up to which YaRN divides the frequency of a pair of channels by s."""


class RotaryPosition(GridPosition):
    """Rotate channels m and D/2 + m of queries and keys at position i by the angle i · base^(−2m/D), m = 0 … D/2 − 1.

    Su et al. 2021, arXiv 2104.09864. O(N D) time, no parameters; for all mixers based on inner products of queries and
    keys. ``scaling`` changes the angles of sequences that are longer than ``train_length``, by the factor
    s = length / ``train_length``, computed for each sequence without its padding. Shorter sequences are unchanged.

    - ``linear`` divides all frequencies base^(−2m/D) by s (Chen et al. 2023, arXiv 2306.15595).
    - ``ntk`` multiplies the base by s^(D/(D−2)), so that the highest frequency is unchanged and the lowest is divided
      by s (Peng et al. 2023, arXiv 2309.00071).
    - ``yarn`` keeps frequencies of at least ``FAST`` rotations over ``train_length``, divides those of at most ``SLOW``
      rotations by s, and interpolates in between. It multiplies attention logits by (0.1 ln s + 1)² (Peng et al. 2023).

    Deviation from the paper: the channels of a pair are D/2 apart instead of adjacent, which is equivalent up to a
    permutation of channels and faster.

    Args:
        width: Model width E.
        heads: Number of attention heads H.
        max_length: Largest expected number of tokens in a sequence; only the default of ``train_length``, not a limit.
        base: Base of the geometric sequence of frequencies, above 1.
        scaling: One of none, linear, ntk, yarn. It can be changed after training (``evaluation_knobs``).
        train_length: Number of tokens beyond which ``scaling`` applies; by default ``max_length``.
        common: Options of ``GridPosition``. ``dimensions=2`` rotates the first half of the pairs by the row of a pixel
            and the second half by its column, each half with frequencies from 1 downwards.

    Raises:
        UserError: If an option has an invalid value, or ``scaling`` is combined with ``dimensions=2`` or
            ``random_positions``.
    """

    name = "rope"
    code = "bojone/bert4keras@c1ae0dc:bert4keras/backend.py"
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
            conflict = "dimensions=2" if self.dimensions == 2 else f"random_positions={self.random_positions}"
            raise UserError(
                f"position.scaling={scaling}: cannot be combined with position.{conflict}; leave one of them out"
            )
        if base <= 1:
            raise UserError(f"position.base={base}: must be above 1")
        self.base, self.scaling, self.train_length = base, scaling, train_length or max_length

    @property
    def depends_on_length(self) -> bool:
        """Whether angles depend on the length of the sequence, which they do unless ``scaling`` is none."""
        return self.scaling != "none"

    @property
    def _is_scalable(self) -> bool:
        """Whether positions are token indices, so that the largest one determines the length of a sequence."""
        return self.dimensions == 1 and self.random_positions is None

    def evaluation_knobs(self) -> Mapping[str, tuple[str, ...]]:
        """Return the values of ``scaling``, except the current one, that can be evaluated without training again.

        The result is empty with ``dimensions=2`` or ``random_positions``, which do not support scaling.
        """
        others = tuple(kind for kind in get_args(Scaling) if kind != self.scaling)
        return {"position.scaling": others} if self._is_scalable else {}

    def rotate(self, q: Tensor, k: Tensor, q_positions: Tensor, k_positions: Tensor) -> tuple[Tensor, Tensor]:
        """Return q (B, H, N, D) and k (B, G, M, D), rotated; if D is odd, the last channel is unchanged."""
        factor = self._scale_factor(k_positions)
        pairs = q.shape[-1] // 2
        rotation = self._rotation(q_positions, pairs, factor)
        return _rotate(q, rotation), _rotate(
            k, rotation if k_positions is q_positions else self._rotation(k_positions, pairs, factor)
        )

    def _scale_factor(self, positions: Tensor) -> Tensor | None:
        """Return s = max(1, length / ``train_length``) of the sequences, float64, (1,) or (B, 1).

        ``positions`` are those of the keys, (N,), shared by all sequences, or (B, N). The length is the number of
        positions from the first to the last key, prefix rows excluded, so that s does not grow along a stream.
        The result is None if nothing is scaled: if ``scaling`` is none, or if there are no more than ``train_length``
        shared positions.
        """
        if self.scaling == "none" or (positions.dim() == 1 and positions.shape[-1] <= self.train_length):
            return None
        first = positions.amin(-1, keepdim=True).clamp(min=0)
        length = positions.amax(-1, keepdim=True) + 1 - first
        return (length.double() / self.train_length).clamp(min=1)

    def _rotation(self, positions: Tensor, pairs: int, factor: Tensor | None) -> tuple[Tensor, Tensor]:
        """Return cosines and sines (..., N, pairs) of the angles of each pair of channels at ``positions`` (..., N).

        They are float64, because single precision loses digits of the angle at large positions. With ``yarn`` both are
        multiplied by 0.1 ln s + 1, so that rotating q and k multiplies their inner product by the square.
        """
        axes = self.coordinates(positions).double()
        if factor is None:
            counts = (pairs,) if len(axes) == 1 else (pairs - pairs // 2, pairs // 2)
            angles = torch.cat(
                [axis[..., None] * self._frequencies(n, axis) for axis, n in zip(axes, counts, strict=True)], -1
            )
            return angles.cos(), angles.sin()
        # Scaling requires a single axis. Frequencies become (pairs,) or (B, pairs).
        frequencies, amplitude = self._frequencies(pairs, axes), torch.ones_like(factor)
        if self.scaling == "linear":
            frequencies = frequencies / factor
        elif self.scaling == "ntk":
            # (base · s^(D/(D−2)))^(−2m/D) = base^(−2m/D) · s^(−m/(D/2 − 1))
            frequencies = frequencies * factor ** (-torch.arange(pairs, device=frequencies.device) / max(pairs - 1, 1))
        else:
            rotations = self.train_length * frequencies / (2 * math.pi)
            unscaled = ((rotations - SLOW) / (FAST - SLOW)).clamp(0, 1)
            frequencies, amplitude = frequencies * (unscaled + (1 - unscaled) / factor), 0.1 * factor.log() + 1
        angles = axes[0][..., None] * frequencies[..., None, :]
        return angles.cos() * amplitude[..., None], angles.sin() * amplitude[..., None]

    def _frequencies(self, pairs: int, like: Tensor) -> Tensor:
        """Return the unscaled frequencies (pairs,) in radians per position, float64, on the device of ``like``."""
        return self.base ** (-torch.arange(pairs, dtype=torch.float64, device=like.device) / max(pairs, 1))


def _rotate(x: Tensor, rotation: tuple[Tensor, Tensor]) -> Tensor:
    """Return x (B, H, N, D) with its pairs of channels rotated, computed in single precision or better.

    ``rotation`` contains cosines and sines, (N, pairs) or (B, N, pairs).
    """
    precise = torch.promote_types(x.dtype, torch.float32)
    cos, sin = (part.to(precise).unsqueeze(-3) for part in rotation)
    pairs = cos.shape[-1]
    a, b = x[..., :pairs], x[..., pairs : 2 * pairs]
    rotated = [a * cos - b * sin, a * sin + b * cos, x[..., 2 * pairs :]]
    return torch.cat(rotated if x.shape[-1] % 2 else rotated[:2], -1).to(x.dtype)
