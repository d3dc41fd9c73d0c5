"""Linear attention with the delta rule and a decay."""

from __future__ import annotations

from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from ..feedforward import linear
from ..mixer import Context, MixerSpec
from .delta_net import DeltaNet
from .steps import step_biases

SLOWEST = 1e-4
"""Smallest initial exp(A): its logarithm is finite."""


class GatedDeltaNet(DeltaNet):
    """Linear attention with the delta rule on a state that decays, and gated outputs.

    The state decays by α_t = exp(−exp(A) softplus(w x_t + b)) before the delta rule is applied. Yang, Kautz,
    Hatamizadeh 2024, arXiv 2412.06464. x (B, N, E) -> (B, N, E). Complexity and options as in ``DeltaNet``, but keys
    are half as wide as values by default, as in the paper. exp(A) is initialised uniformly between 0 and 16, and
    softplus(b) between 0.001 and 0.1, as in the authors' code.

    Deviations from the authors' code: values are as wide as x and keys half as wide, where the authors' are 1.5 and
    0.75 times as wide, which gives about as many parameters as attention; the others as in ``DeltaNet``.
    """

    decay_per_head = True

    spec = MixerSpec(
        family="recurrent",
        paper="Gated Delta Networks: Improving Mamba2 with Delta Rule",
        arxiv="2412.06464",
        causal="exact",
        memory=True,
        code="NVlabs/GatedDeltaNet@5ddd1e4:lit_gpt/gated_delta_net.py",
    )

    def __init__(
        self,
        width: int,
        heads: int,
        *,
        key_width: int | None = None,
        gated: bool = True,
        filter: int = 4,
        filter_bias: bool = False,
        negative: bool = False,
        state_heads: int | None = None,
        **common: Any,
    ) -> None:
        matrix: dict[str, Any] = {"filter": filter, "filter_bias": filter_bias, "gated": gated}
        key_width = max(width // 2, 1) if key_width is None else key_width
        super().__init__(
            width, heads, key_width=key_width, negative=negative, state_heads=state_heads, **matrix, **common
        )
        self.step = linear(width, self.streams)
        self.log_rate = nn.Parameter(torch.empty(self.streams).uniform_(0, 16).clamp(min=SLOWEST).log())
        with torch.no_grad():
            self.step.bias.copy_(step_biases(self.streams))
        self.optimizer_hints = {"log_rate": {"weight_decay": 0.0}}

    def decays(self, x: Tensor, context: Context) -> tuple[Tensor, Tensor | None]:
        """Return log α and β, both (B, H, N)."""
        steps = F.softplus(self.by_stream(self.step(x), context))
        return -self.log_rate.exp()[:, None].to(steps.dtype) * steps, super().decays(x, context)[1]
