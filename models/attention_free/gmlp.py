"""gMLP and aMLP: token mixing by a gate that is a learned linear map along the sequence."""

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

NEAR_ZERO = 1e-3  # upper bound of the initial absolute sum of a row of W
SPATIAL = ("dense", "toeplitz")


class GatedMLP(Mixer):
    """x + V (Z₁ ⊙ (W norm(Z₂) + b)), with Z₁ and Z₂ the halves of GELU(U norm(x)); W mixes positions, not channels.

    Liu et al. 2021, arXiv 2105.08050. x (B, N, E) -> (B, N, E). A self-contained block, which replaces attention and
    feed-forward network. ``hidden`` is h, the width of U x, by default the paper's 6 E. O(N^2 h) time, O(N^2)
    parameters for up to ``max_length`` positions; shorter sequences use the leading part of W and b. W is initialised
    near zero, b to one. With ``spatial`` ``toeplitz`` W depends only on the distance between positions: O(N log N h)
    time, O(N) parameters. If ``attention`` is positive, the output of one attention head of that width over norm(x) is
    added to the gate: aMLP. Padding is set to zero before it is mixed. In the causal form W is lower triangular.

    Deviations from the paper: dropout is applied to the branch; the paper drops whole layers.
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
            raise UserError(f"model.mixer.attention={attention}: must not be negative; set 0 for no attention")
        if spatial not in SPATIAL:
            raise UserError(f"model.mixer.spatial={spatial}: must be one of {', '.join(SPATIAL)}")
        self.norm, self.gate_norm = nn.LayerNorm(width), nn.LayerNorm(hidden // 2)
        self.before, self.after = linear(width, hidden), linear(hidden // 2, width)
        self.spatial, longest = spatial, self.max_length
        # Toeplitz: weights by distance, first for earlier positions (distance 0 included), then for later ones.
        rows = longest if spatial == "dense" else 1 if self.causal else 2
        self.weights = nn.Parameter(torch.empty(rows, longest).uniform_(-1, 1) * (NEAR_ZERO / longest))
        self.bias = nn.Parameter(torch.ones(longest))
        self.attention = attention
        if attention:
            self.compared, self.read = linear(width, 3 * attention), linear(attention, hidden // 2)

    def restricts_from(self) -> int | None:
        """Return 0, because weights depend on positions only; None with an attention head."""
        return None if self.attention else 0

    def forward(self, x: Tensor, context: Context) -> tuple[Tensor, Context]:
        """Apply the whole block, including the residual connection."""
        normed = self.norm(x)
        z1, z2 = F.gelu(self.before(normed)).chunk(2, -1)
        z2 = self.gate_norm(z2)
        if context.padding is not None:
            z2 = context.padding.zero(z2)
        gate = self._mix(z2) + self.bias[: x.shape[1], None].to(z2.dtype)
        if self.attention:
            q, k, v = self.compared(normed)[:, None].chunk(3, -1)
            read = softmax_attention(q, k, v, padding=context.padding, causal=self.causal, dropout=self.drop_rate)
            gate = gate + self.read(read[:, 0])
        return x + dropout(self.after(z1 * gate), self.drop_rate), context

    def _mix(self, z: Tensor) -> Tensor:
        """Return W z for z (B, N, C)."""
        rows = z.shape[1]
        if self.spatial == "dense":
            weights = self.weights[:rows, :rows]
            return torch.einsum("nm,bmc->bnc", weights.tril() if self.causal else weights, z)
        ahead = None if self.causal else self.weights[1, : rows - 1]
        return fft_convolution(z.mT, self.weights[0], ahead).mT.to(z.dtype)
