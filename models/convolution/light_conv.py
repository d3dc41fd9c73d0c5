"""Lightweight convolutions: heads are convolved with kernels whose weights sum to one."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from lra_bench.contracts import UserError

from ..feedforward import linear
from ..kernels.dropout import dropout
from ..kernels.head_convolution import head_convolution
from ..mixer import Context, Mixer, MixerSpec


class LightConvolution(Mixer):
    """W_o (softmax(kernel) ∗ GLU(W x)), one kernel for all channels of a head.

    Wu et al. 2019, arXiv 1901.10430. x (B, N, E) -> (B, N, E). O(N E (E + K)) time, O(N E) memory. ``kernels`` are how
    many rows the kernels of each layer see, those of the last for all further ones; on both sides they are odd. A layer
    sees K // 2 rows on either side or, if causal, K − 1 before. ``hidden`` is the width of what is convolved. Weights
    are dropped after the softmax.
    Deviates: ``hidden`` is by default 4/3 E, as near as heads divide it, with which the system has as many weights as
    attention, where the paper has E; kernels of layers begin with 3, 7, 15 and 31 as in its encoder of seven.
    """

    spec = MixerSpec(
        family="convolution",
        paper="Pay Less Attention with Lightweight and Dynamic Convolutions",
        arxiv="1901.10430",
        causal="exact",
    )

    def __init__(
        self,
        width: int,
        heads: int,
        *,
        kernels: Sequence[int] = (3, 7, 15, 31),
        hidden: int | None = None,
        **common: Any,
    ) -> None:
        super().__init__(width, heads, **common)
        hidden = max(1, round(4 * width / (3 * heads))) * heads if hidden is None else hidden
        if hidden < 1 or hidden % heads:
            raise UserError(f"model.mixer.hidden={hidden}: is not shared out to backbone.heads={heads}")
        if not kernels or min(kernels) < 1 or (not self.causal and any(size % 2 == 0 for size in kernels)):
            raise UserError(f"model.mixer.kernels={list(kernels)}: must be positive, and odd where both sides are seen")
        self.taps = list(kernels)[min(self.layer, len(kernels) - 1)]
        self.value, self.output = linear(width, 2 * hidden), linear(hidden, width)
        self.begin(hidden)

    def begin(self, hidden: int) -> None:
        """Draw what weights are made of."""
        self.kernel = nn.Parameter(torch.empty(self.heads, self.taps))
        nn.init.xavier_uniform_(self.kernel)

    def forward(self, x: Tensor, context: Context) -> tuple[Tensor, Context]:
        """Gate, convolve, project."""
        value = F.glu(self.value(x), -1)
        if context.padding is not None:
            value = context.padding.zero(value)
        weights = dropout(self.scores(value).softmax(-1), self.drop_rate).to(value.dtype)
        split = value.unflatten(-1, (self.heads, -1)).transpose(1, 2)
        mixed = head_convolution(split, weights, causal=self.causal)
        return self.output(mixed.transpose(1, 2).flatten(2)), context

    def scores(self, value: Tensor) -> Tensor:
        """What weights are made of, (H, K) or (B, H, N, K), for values (B, N, C)."""
        return self.kernel
