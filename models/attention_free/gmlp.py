"""Mixing by a gate that is a learned linear map over the sequence."""

from __future__ import annotations

from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from lra_bench.contracts import UserError

from ..feedforward import linear
from ..kernels.dropout import dropout
from ..kernels.fft_convolution import fft_convolution
from ..kernels.softmax import softmax_attention
from ..mixer import Context, Mixer, MixerSpec

NEAR_ZERO = 1e-3  # the sum of a row of W at most, to begin with
SPATIAL = ("dense", "toeplitz")


class GatedMLP(Mixer):
    """x + V (Z₁ ⊙ (W norm(Z₂) + b)), where Z₁ and Z₂ are halves of GELU(U norm(x)) and W mixes rows, not channels.

    Liu et al. 2021, arXiv 2105.08050. x (B, N, E) -> (B, N, E), a block of its own, in place of attention and
    feed-forward network. ``hidden`` is the width of U x, by default the paper's 6 E. O(N^2 h) time, O(N^2) parameters
    for up to ``max_length`` rows, of which a shorter row takes a part; W begins near zero and b at one. With
    ``spatial`` ``toeplitz`` W depends on the distance alone: O(N log N h) time, O(N) parameters.
    ``attention`` above zero adds to the gate one head of attention of that width, which reads norm(x): aMLP.
    Padding is zero before it is mixed. Causally W is triangular.
    Deviates: the branch is dropped, where the paper drops whole layers.
    """

    spec = MixerSpec(
        family="attention_free",
        paper="Pay Attention to MLPs",
        arxiv="2105.08050",
        causal="exact",
        length="maximum",
        growth=2.0,
        materialises="parameters",
        block="self_contained",
    )

    def __init__(
        self,
        width: int,
        heads: int,
        *,
        hidden: int | None = None,
        attention: int = 0,
        spatial: str = "dense",
        **common: Any,
    ) -> None:
        super().__init__(width, heads, **common)
        hidden = 6 * width if hidden is None else hidden
        if hidden < 2 or hidden % 2:
            raise UserError(f"model.mixer.hidden={hidden}: must be even and at least 2")
        if attention < 0:
            raise UserError(f"model.mixer.attention={attention}: must not be negative; 0 means none")
        if spatial not in SPATIAL:
            raise UserError(f"model.mixer.spatial={spatial}: is none of {', '.join(SPATIAL)}")
        self.norm, self.gate_norm = nn.LayerNorm(width), nn.LayerNorm(hidden // 2)
        self.before, self.after = linear(width, hidden), linear(hidden // 2, width)
        self.spatial, longest = spatial, self.max_length
        # By distance: the weights of the rows from this one back and, but causally, of the rows ahead.
        rows = longest if spatial == "dense" else 1 if self.causal else 2
        self.weights = nn.Parameter(torch.empty(rows, longest).uniform_(-1, 1) * (NEAR_ZERO / longest))
        self.bias = nn.Parameter(torch.ones(longest))
        self.attention = attention
        if attention:
            self.compared, self.read = linear(width, 3 * attention), linear(attention, hidden // 2)

    def forward(self, x: Tensor, context: Context) -> tuple[Tensor, Context]:
        """The whole block."""
        inside = self.norm(x)
        kept, mixed = F.gelu(self.before(inside)).chunk(2, -1)
        mixed = self.gate_norm(mixed)
        if context.padding is not None:
            mixed = context.padding.zero(mixed)
        gate = self._mix(mixed) + self.bias[: x.shape[1], None].to(mixed.dtype)
        if self.attention:
            q, k, v = self.compared(inside)[:, None].chunk(3, -1)
            read = softmax_attention(q, k, v, padding=context.padding, causal=self.causal, dropout=self.drop_rate)
            gate = gate + self.read(read[:, 0])
        return x + dropout(self.after(kept * gate), self.drop_rate), context

    def _mix(self, z: Tensor) -> Tensor:
        """W z of rows z (B, N, C)."""
        rows = z.shape[1]
        if self.spatial == "dense":
            weights = self.weights[:rows, :rows]
            return torch.einsum("nm,bmc->bnc", weights.tril() if self.causal else weights, z)
        ahead = None if self.causal else self.weights[1, : rows - 1]
        return fft_convolution(z.mT, self.weights[0], ahead).mT.to(z.dtype)
