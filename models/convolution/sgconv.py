"""SGConv: convolution with kernels whose resolution and magnitude decrease with the lag."""

from __future__ import annotations

import math
from typing import Any, ClassVar

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from lra_bench.contracts import UserError

from ..mixer import MixerSpec
from .convolved import Convolved


class SGConv(Convolved):
    """y = k ∗ x + D ⊙ x for each channel, with k concatenated from pieces that become longer and weaker with the lag.

    Li, Cai, Zhang, Chen, Dey 2022, arXiv 2210.09298. x (B, N, E) -> (B, N, E). O(N E log N) time, O(N E) memory and
    O(E taps log N) parameters. Each piece has ``taps`` parameters, linearly interpolated by factors 1, 1, 2, 4 ... and
    multiplied by increasing powers of 1 / ``decay``, until the maximum length is covered. Kernels are divided by their
    initial norms.

    As in the authors' code (ctlllll/SGConv at 97862df, gconv_standalone.py), pieces have 64 taps, the output projection
    is a linear layer after GELU, lags beyond the last piece are zero, and kernels are trained at a rate of 0.001.
    The paper uses 1 to 32 taps.

    Deviations from the authors' code: dropout is applied to single features, before the projection; the block also has
    a feed-forward network.

    Args:
        width: Model width E.
        heads: Number of heads, which has no effect.
        taps: Number of parameters of a piece.
        decay: Factor by which each piece is weaker than the one before.
        gated: Whether the output projection is gated (GLU); otherwise a linear layer.
        common: Options of ``Mixer``.

    Raises:
        UserError: If ``taps`` is below 1, or ``decay`` is not positive.
    """

    spec = MixerSpec(
        family="convolution",
        paper="What Makes Convolutional Models Great on Long Sequence Modeling?",
        arxiv="2210.09298",
        causal="exact",
        code="ctlllll/SGConv@97862df:gconv_standalone.py",
    )
    revision: ClassVar[int] = 2
    norm: Tensor

    def __init__(
        self, width: int, heads: int, *, taps: int = 64, decay: float = 2.0, gated: bool = False, **common: Any
    ) -> None:
        super().__init__(width, heads, gated=gated, **common)
        if taps < 1:
            raise UserError(f"model.mixer.taps={taps}: must be at least 1")
        if decay <= 0:
            raise UserError(f"model.mixer.decay={decay}: must be positive")
        scales = 1 + max(0, math.ceil(math.log2(self.max_length / taps)))
        self.decay = decay
        self.pieces = nn.Parameter(torch.randn(self.directions, width, scales, taps))
        with torch.no_grad():
            self.register_buffer("norm", self._concatenated(taps * 2 ** (scales - 1)).norm(dim=-1, keepdim=True))
        self.optimizer_hints = {"pieces": {"max_lr": 1e-3}}

    def lags(self, length: int) -> tuple[Tensor, ...]:
        """Return the kernels (E, up to ``length``), one for each direction."""
        return tuple((self._concatenated(length) / self.norm).unbind())

    def _concatenated(self, length: int) -> Tensor:
        """Return the concatenated kernels (directions, E, up to ``length``), not yet divided by their norms."""
        taps, parts = self.pieces.shape[-1], []
        for scale, piece in enumerate(self.pieces.unbind(2)):
            stretch = 2 ** max(0, scale - 1)
            start = taps * stretch if scale else 0
            if start >= length:
                break
            stretched = F.interpolate(piece, scale_factor=stretch, mode="linear") if stretch > 1 else piece
            parts.append(stretched[..., : length - start] * self.decay**-scale)
        return torch.cat(parts, -1)
