"""MLP-Mixer: token mixing by a network of two layers along the sequence."""

from __future__ import annotations

from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from lra_bench.contracts import UserError

from ..kernels.dropout import dropout
from ..mixer import Context, Mixer, MixerSpec


class MLPMixer(Mixer):
    """y = W₂ GELU(W₁ x + b₁) + b₂ along the sequence, with the same weights for every channel.

    Tolstikhin et al. 2021, arXiv 2105.01601. x (B, N, E) -> (B, N, E); the paper's channel mixing is the feed-forward
    network of the block. ``hidden`` is h, the width of the hidden layer, by default the paper's E / 2. O(N h E) time,
    O((N + h) E) memory; 2 h parameters for each of up to ``max_length`` positions, of which shorter sequences use the
    first.

    Deviations from the paper: padding is set to zero first; dropout is applied to the hidden layer.
    """

    spec = MixerSpec(
        family="attention_free",
        paper="MLP-Mixer: An all-MLP Architecture for Vision",
        arxiv="2105.01601",
        code="google-research/vision_transformer@c6de1e5:vit_jax/models_mixer.py",
        length="maximum",
    )

    def __init__(self, width: int, heads: int, *, hidden: int | None = None, **common: Any) -> None:
        super().__init__(width, heads, **common)
        if hidden is not None and hidden < 1:
            raise UserError(f"model.mixer.hidden={hidden}: must be at least 1")
        hidden = hidden or max(1, width // 2)
        self.before = nn.Parameter(torch.empty(hidden, self.max_length))
        self.before_bias = nn.Parameter(torch.zeros(hidden))
        self.after = nn.Parameter(torch.empty(self.max_length, hidden))
        self.after_bias = nn.Parameter(torch.zeros(self.max_length))
        nn.init.xavier_uniform_(self.before)
        nn.init.xavier_uniform_(self.after)

    def restricts_from(self) -> int:
        """Return 0: weights depend on positions only."""
        return 0

    def forward(self, x: Tensor, context: Context) -> tuple[Tensor, Context]:
        """Mix positions, separately for each channel."""
        rows = x.shape[1]
        if context.padding is not None:
            x = context.padding.zero(x)
        hidden = torch.einsum("hn,bne->bhe", self.before[:, :rows], x)
        hidden = dropout(F.gelu(hidden + self.before_bias[:, None].to(hidden.dtype)), self.drop_rate)
        y = torch.einsum("nh,bhe->bne", self.after[:rows], hidden)
        return y + self.after_bias[:rows, None].to(y.dtype), context
