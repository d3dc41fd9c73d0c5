"""Retention: linear attention with a constant decay."""

from __future__ import annotations

import torch
from torch import Tensor

from ..mixer import Context, MixerSpec
from .matrix_recurrence import MatrixRecurrence


class RetNet(MatrixRecurrence):
    """Retention: linear attention with a constant decay per head, then a norm and a gate.

    Σ_{j ≤ i} γ_h^(i − j) (q_i · k_j) v_j with γ_h = 1 − 2^(−5 − h) for head h. Sun et al. 2023, arXiv 2307.08621. x (B,
    N, E) -> (B, N, E). O(N E (C + E / H)) time and O(N E) memory, in chunks of C tokens. Queries and keys are rotated
    by the position encoding (``position=rope``, set in the model's YAML file); without it scores depend on distance
    only through the decay. Options as in ``MatrixRecurrence``.

    Deviations from the paper: values are as wide as the model and keys half as wide, where the paper doubles both,
    which gives about as many parameters as attention; the output is not divided by the sum of weights, because the norm
    that follows cancels a scale.
    """

    spec = MixerSpec(
        family="recurrent",
        paper="Retentive Network: A Successor to Transformer for Large Language Models",
        arxiv="2307.08621",
        causal="exact",
        positions=("embed", "rotate"),
        memory=True,
    )

    def features(self, q: Tensor, k: Tensor, v: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """Return queries, keys scaled by K^(−1/2), and values."""
        return q, k * self.key_dim**-0.5, v

    def decays(self, x: Tensor, context: Context) -> tuple[Tensor, Tensor | None]:
        """Return log γ of each head, expanded to (B, H, N), and None."""
        rates = torch.arange(self.heads, device=x.device, dtype=torch.promote_types(x.dtype, torch.float32))
        log_decay = torch.log1p(-(2.0 ** (-5.0 - rates))).repeat(self.streams // self.heads)
        return log_decay[:, None].expand(x.shape[0], -1, x.shape[1]), None
