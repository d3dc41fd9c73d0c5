"""Convolution with kernels that are written more coarsely, and weaker, the farther they reach."""

from __future__ import annotations

import math
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from lra_bench.contracts import UserError

from ..mixer import MixerSpec
from .convolved import Convolved


class SGConv(Convolved):
    """y = k ∗ x + D ⊙ x for each channel, with k of pieces, the farther the longer and the weaker.

    Li, Cai, Zhang, Chen, Dey 2022, arXiv 2210.09298. x (B, N, E) -> (B, N, E). O(N E log N) time, O(N E) memory and
    O(E taps log N) parameters. A piece is ``taps`` numbers, stretched linearly by 1, 1, 2, 4 ... and weighed by the
    powers of 1 / ``decay``, until the longest row is covered; the paper's runs have 1 to 32 taps. Kernels are divided
    by the norms that they begin with.
    Deviates: lags beyond the last piece are zero, as in the authors' code; the lag of zero stands in the forward kernel
    alone; dropout comes before the projection, once; within a block that has a feed-forward network.
    """

    spec = MixerSpec(
        family="convolution",
        paper="What Makes Convolutional Models Great on Long Sequence Modeling?",
        arxiv="2210.09298",
        causal="exact",
    )
    norm: Tensor

    def __init__(self, width: int, heads: int, *, taps: int = 8, decay: float = 2.0, **common: Any) -> None:
        super().__init__(width, heads, **common)
        if taps < 1:
            raise UserError(f"model.mixer.taps={taps}: must be at least 1")
        if decay <= 0:
            raise UserError(f"model.mixer.decay={decay}: must be positive")
        scales = 1 + max(0, math.ceil(math.log2(self.max_length / taps)))
        self.decay = decay
        self.pieces = nn.Parameter(torch.randn(self.directions, width, scales, taps))
        with torch.no_grad():
            self.register_buffer("norm", self._joined(taps * 2 ** (scales - 1)).norm(dim=-1, keepdim=True))
        self.optimizer_hints = {"pieces": {"max_lr": 1e-3}}

    def lags(self, length: int) -> tuple[Tensor, ...]:
        """Kernels (E, up to ``length``)."""
        return tuple((self._joined(length) / self.norm).unbind())

    def _joined(self, length: int) -> Tensor:
        """Kernels (directions, E, up to ``length``) before they are divided."""
        taps, parts = self.pieces.shape[-1], []
        for scale, piece in enumerate(self.pieces.unbind(2)):
            stretch = 2 ** max(0, scale - 1)
            begin = taps * stretch if scale else 0
            if begin >= length:
                break
            longer = F.interpolate(piece, scale_factor=stretch, mode="linear") if stretch > 1 else piece
            parts.append(longer[..., : length - begin] * self.decay**-scale)
        return torch.cat(parts, -1)
