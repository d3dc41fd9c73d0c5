"""Retention: linear attention with a constant decay."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn

from ..mixer import Context, MixerSpec
from .matrix_recurrence import MatrixRecurrence


class RetNet(MatrixRecurrence):
    """Retention: linear attention with a constant decay per head, then a norm and a gate.

    Σ_{j ≤ i} γ_h^(i − j) (q_i · k_j) v_j with γ_h = 1 − 2^(−5 − h) for head h. Sun et al. 2023, arXiv 2307.08621. x (B,
    N, E) -> (B, N, E). O(N E (C + E / H)) time and O(N E) memory, in chunks of C tokens. Queries and keys are rotated
    by the position encoding (``position=rope``, set in the model's YAML file); without it scores depend on distance
    only through the decay. The norm has no scale. Options as in ``MatrixRecurrence``.

    Deviations from the authors' code: values are as wide as the model and keys half as wide, where the authors' are
    twice and once as wide, which gives about as many parameters as attention; the output is not divided by sums of
    decays and of weights, because the norm that follows cancels a scale, except for the constant ``norm_eps``; the
    slowest angle of K rotated channels is 10000^(2/K − 1), where the authors' is 1/10000; the projections have biases
    and are not initialised smaller than Xavier-uniform.
    """

    decay_per_head = True
    norm_eps = 1e-6

    spec = MixerSpec(
        family="recurrent",
        paper="Retentive Network: A Successor to Transformer for Large Language Models",
        arxiv="2307.08621",
        causal="exact",
        positions=("embed", "rotate"),
        memory=True,
        code="microsoft/torchscale@4d1e0e8:torchscale/component/multiscale_retention.py",
    )

    def __init__(
        self,
        width: int,
        heads: int,
        *,
        key_width: int | None = None,
        filter: int = 0,
        filter_bias: bool = False,
        gated: bool = True,
        state_heads: int | None = None,
        **common: Any,
    ) -> None:
        matrix: dict[str, Any] = {"filter": filter, "filter_bias": filter_bias, "gated": gated}
        super().__init__(width, heads, key_width=key_width, state_heads=state_heads, **matrix, **common)
        self.norm = nn.RMSNorm(self.head_dim, eps=self.norm_eps, elementwise_affine=False)

    def features(self, q: Tensor, k: Tensor, v: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """Return queries, keys scaled by K^(−1/2), and values."""
        return q, k * self.key_dim**-0.5, v

    def decays(self, x: Tensor, context: Context) -> tuple[Tensor, Tensor | None]:
        """Return log γ of each head, expanded to (B, H, N), and None."""
        rates = torch.arange(self.state_heads, device=x.device, dtype=torch.promote_types(x.dtype, torch.float32))
        log_decay = torch.log1p(-(2.0 ** (-5.0 - rates))).repeat(self.streams // self.state_heads)
        return log_decay[:, None].expand(x.shape[0], -1, x.shape[1]), None
