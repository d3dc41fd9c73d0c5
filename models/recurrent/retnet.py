"""Retention: linear attention that fades at a constant rate."""

from __future__ import annotations

import torch
from torch import Tensor

from ..mixer import Context, MixerSpec
from .matrix_recurrence import MatrixRecurrence


class RetNet(MatrixRecurrence):
    """Σ_{j ≤ i} γ_h^(i − j) (q_i · k_j) v_j, queries and keys turned by their positions, a norm and a gate behind it.

    Sun et al. 2023, arXiv 2307.08621. x (B, N, E) -> (B, N, E).
    O(N E (C + E / H)) time, O(N E) memory, by chunks of C rows. γ_h = 1 − 2^(−5 − h) for head h. Turning is the rotary
    position's (``position=rope``, as the model file has it), without which queries do not know distances within it.
    Deviates: the values are as wide as the model and keys half as wide, where the paper doubles both, so that the
    system has as many weights as attention; no sum of weights divides the output, for the norm would undo it.
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
        """Keys scaled by K^(−1/2)."""
        return q, k * self.key_dim**-0.5, v

    def decays(self, x: Tensor, context: Context) -> tuple[Tensor, Tensor | None]:
        """log γ of each head, at every row."""
        rates = torch.arange(self.heads, device=x.device, dtype=torch.promote_types(x.dtype, torch.float32))
        log_decay = torch.log1p(-(2.0 ** (-5.0 - rates))).repeat(self.streams // self.heads)
        return log_decay[:, None].expand(x.shape[0], -1, x.shape[1]), None
