"""Lightweight convolutions: each head is convolved with a kernel whose weights sum to one."""

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
from ..recurrent.recurrence import last_rows


class LightConvolution(Mixer):
    """W_o (softmax(kernel) ∗ GLU(W x)), with one kernel for all channels of a head.

    Wu et al. 2019, arXiv 1901.10430. x (B, N, E) -> (B, N, E). O(N E (E + K)) time, O(N E) memory. ``kernels`` are the
    kernel sizes K by layer; the last one also applies to all further layers. They must be odd unless causal. A layer
    covers K // 2 positions on either side or, if causal, the K − 1 positions before. ``hidden`` is the width of the
    convolved features. Dropout is applied to the weights after the softmax.

    Deviations from the paper: ``hidden`` is by default 4/3 E, rounded to a multiple of the heads, so that the mixer has
    as many parameters as attention; the paper uses E. Kernel sizes are 3, 7, 15 and then 31, the first ones of the
    paper's encoder of seven layers.
    """

    spec = MixerSpec(
        family="convolution",
        paper="Pay Less Attention with Lightweight and Dynamic Convolutions",
        arxiv="1901.10430",
        code="facebookresearch/fairseq@3d262bb:fairseq/modules/lightweight_convolution.py",
        causal="exact",
    )
    has_step_form = True

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
            raise UserError(f"model.mixer.hidden={hidden}: must be a positive multiple of backbone.heads={heads}")
        if not kernels or min(kernels) < 1 or (not self.causal and any(size % 2 == 0 for size in kernels)):
            raise UserError(f"model.mixer.kernels={list(kernels)}: must be positive, and odd unless causal")
        self.taps = list(kernels)[min(self.layer, len(kernels) - 1)]
        self.value, self.output = linear(width, 2 * hidden), linear(hidden, width)
        self.begin(hidden)

    def restricts_from(self) -> int:
        """Return 0: weights do not depend on pairs of tokens."""
        return 0

    def begin(self, hidden: int) -> None:
        """Create the parameters of the kernels for values of width ``hidden``."""
        self.kernel = nn.Parameter(torch.empty(self.heads, self.taps))
        nn.init.xavier_uniform_(self.kernel)

    def forward(self, x: Tensor, context: Context) -> tuple[Tensor, Context]:
        """Project x through a gated linear unit, convolve each head, and apply the output projection."""
        value = F.glu(self.value(x), -1)
        if context.padding is not None:
            value = context.padding.zero(value)
        weights = dropout(self.scores(value).softmax(-1), self.drop_rate).to(value.dtype)
        before = 0
        if context.keeps_memory:
            before = self.taps - 1
            stored = value.new_zeros(len(value), before, value.shape[2])
            stored = stored if context.memory is None else context.memory["values"]
            context = context.replace(memory={"values": last_rows(value, stored, context.padding)})
            value = torch.cat((stored, value), 1)
            weights = F.pad(weights, (0, 0, before, 0)) if weights.dim() == 4 else weights
        split = value.unflatten(-1, (self.heads, -1)).transpose(1, 2)
        mixed = head_convolution(split, weights, causal=self.causal)[:, :, before:]
        return self.output(mixed.transpose(1, 2).flatten(2)), context

    def scores(self, value: Tensor) -> Tensor:
        """Return kernel scores (H, K) or (B, H, N, K) for values (B, N, C)."""
        return self.kernel
