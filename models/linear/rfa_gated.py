"""Gated RFA: random feature attention with a forget gate."""

from __future__ import annotations

from typing import Any

import torch.nn.functional as F
from torch import Tensor, nn

from ..mixer import MixerSpec
from .rfa import RFA


class GatedRFA(RFA):
    """Random feature attention whose sums decay by a gate g_t per token: S_t = g_t S_(t−1) + (1 − g_t) φ(k_t) v_t.

    Peng et al. 2021, arXiv 2103.02143, section 3.2. x (B, N, E) -> (B, N, E); the gate is a sigmoid of a linear map of
    x for each head. O(N M D) time, O(N M + M D) memory per head, computed in chunks; causal only. Options and
    deviations as in ``RFA``; the authors' code has no gate.
    """

    spec = MixerSpec(
        family="linear",
        paper="Random Feature Attention",
        arxiv="2103.02143",
        bidirectional=False,
        causal="exact",
        stochastic=True,
    )
    has_step_form = True
    draws = "rfa_gated"

    def __init__(
        self,
        width: int,
        heads: int,
        *,
        features: int = 64,
        kernel: str = "gaussian",
        temperature: float = 1.0,
        redraw_every: int = 1,
        **common: Any,
    ) -> None:
        super().__init__(
            width, heads, features=features, kernel=kernel, temperature=temperature, redraw_every=redraw_every, **common
        )
        self.gate = nn.Linear(width, heads)
        nn.init.zeros_(self.gate.bias)

    def decays(self, x: Tensor) -> dict[str, Tensor]:
        """Return the logarithm of the gate and the weight of new keys, (B, H, N) each."""
        gate = self.gate(x).mT
        gate = gate.float() if gate.dtype.itemsize < 4 else gate
        return {"log_decay": F.logsigmoid(gate), "key_weights": (-gate).sigmoid()}
