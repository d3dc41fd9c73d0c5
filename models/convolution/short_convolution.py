"""Gated convolution over a few neighbours: a baseline with a bounded receptive field."""

from __future__ import annotations

from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from lra_bench.contracts import UserError

from ..feedforward import linear
from ..kernels.dropout import dropout
from ..mixer import Context, Mixer, MixerSpec
from ..recurrent.recurrence import last_rows


class ShortConvolution(Mixer):
    """Gated depthwise convolution with a short kernel, between two projections.

    Miralles-González et al. 2025, arXiv 2501.14850, show that such a baseline with a bounded receptive field suffices
    for much of the Long Range Arena. x (B, N, E) -> W_o (SiLU(W_g x) ⊙ (kernel ∗ W_v x)), also (B, N, E).
    O(N E (E + K)) time, O(N E) memory. ``kernel`` is K: a layer covers K // 2 positions on either side or, if causal,
    the K − 1 positions before.

    Deviations from the paper: it trains a convolution over all channels; here channels are mixed by the projections,
    and each token has a gate. Dropout is applied to the gated values, because there are no weights between tokens.
    """

    spec = MixerSpec(
        family="convolution",
        paper="On the locality bias and results in the Long Range Arena",
        arxiv="2501.14850",
        causal="exact",
    )
    has_step_form = True

    def __init__(self, width: int, heads: int, *, kernel: int = 5, **common: Any) -> None:
        super().__init__(width, heads, **common)
        if kernel < 1 or (kernel % 2 == 0 and not self.causal):
            raise UserError(f"model.mixer.kernel={kernel}: must be positive, and odd unless causal")
        self.value, self.gate, self.output = linear(width, width), linear(width, width), linear(width, width)
        self.kernel = nn.Parameter(torch.empty(width, 1, kernel))
        nn.init.uniform_(self.kernel, -(kernel**-0.5), kernel**-0.5)

    def restricts_from(self) -> int:
        """Return 0: weights depend on distances only."""
        return 0

    def forward(self, x: Tensor, context: Context) -> tuple[Tensor, Context]:
        """Project x, convolve, gate, and apply the output projection."""
        value = self.value(x)
        if context.padding is not None:
            value = context.padding.zero(value)
        reach = self.kernel.shape[-1] - 1
        if context.keeps_memory:
            before = None if context.memory is None else context.memory["values"]
            before = value.new_zeros(len(value), reach, self.width) if before is None else before
            inputs = torch.cat((before, value), 1).transpose(1, 2)
            context = context.replace(memory={"values": last_rows(value, before, context.padding)})
        else:
            inputs = F.pad(value.transpose(1, 2), (reach, 0) if self.causal else (reach // 2, reach // 2))
        mixed = F.conv1d(inputs, self.kernel, groups=self.width).transpose(1, 2)
        return self.output(dropout(F.silu(self.gate(x)) * mixed, self.drop_rate)), context
