"""Linear attention with several steps of the delta rule per token and a decay."""

from __future__ import annotations

from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from ..feedforward import linear
from ..mixer import Context, MixerSpec
from .delta_product import DeltaProduct
from .gated_delta_net import SLOWEST
from .steps import step_biases


class GatedDeltaProduct(DeltaProduct):
    """Linear attention with n steps of the delta rule per token on a state that decays, and gated outputs.

    The state decays by α_t = exp(−exp(A) softplus(w x_t + b)) before the first step of a token. Siems et al. 2025,
    arXiv 2502.10297. x (B, N, E) -> (B, N, E). Complexity, options and deviations as in ``DeltaProduct``, but the
    outputs are gated by default. exp(A) is initialised uniformly between 0 and 16, and softplus(b) between 0.001 and
    0.1, as in the authors' code.

    Deviations from the authors' code: values are as wide as x and keys a quarter as wide; the others as in
    ``DeltaNet``.
    """

    spec = MixerSpec(
        family="recurrent",
        paper="DeltaProduct: Improving State-Tracking in Linear RNNs via Householder Products",
        arxiv="2502.10297",
        causal="exact",
        memory=True,
        code="fla-org/flash-linear-attention@bc3b101:fla/layers/gated_deltaproduct.py",
    )

    def __init__(
        self,
        width: int,
        heads: int,
        *,
        steps: int = 2,
        key_width: int | None = None,
        filter: int = 4,
        filter_bias: bool = False,
        gated: bool = True,
        negative: bool = True,
        state_heads: int | None = None,
        **common: Any,
    ) -> None:
        matrix: dict[str, Any] = {"filter": filter, "filter_bias": filter_bias, "gated": gated, "negative": negative}
        super().__init__(width, heads, steps=steps, key_width=key_width, state_heads=state_heads, **matrix, **common)
        self.step = linear(width, self.streams)
        self.log_rate = nn.Parameter(torch.empty(self.streams).uniform_(0, 16).clamp(min=SLOWEST).log())
        with torch.no_grad():
            self.step.bias.copy_(step_biases(self.streams))
        self.optimizer_hints = {"log_rate": {"weight_decay": 0.0}}

    def decays(self, x: Tensor, context: Context) -> tuple[Tensor, Tensor]:
        """Return log α (B, H, N), and β of all steps (B, H, n N)."""
        steps = F.softplus(self.by_stream(self.step(x), context))
        return -self.log_rate.exp()[:, None].to(steps.dtype) * steps, super().decays(x, context)[1]
