"""Learned mixture of the hidden states of all layers."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor, nn


class LayerMix(nn.Module):
    """Sum of the hidden states of the embedding and of all layers with softmax weights.

    Bapna et al. 2018, arXiv 1808.07561 (transparent attention). States (B, N, E) of ``depth`` + 1 places -> (B, N, E).
    Initially the weights are equal.

    Deviation from the paper: its decoder has one such sum per layer; here there is no decoder, and the output head
    receives one.
    """

    def __init__(self, depth: int) -> None:
        super().__init__()
        self.logits = nn.Parameter(torch.zeros(depth + 1))

    def forward(self, states: Sequence[Tensor]) -> Tensor:
        """Return the sum of the states of the embedding and of each layer, in this order."""
        weights = self.logits.softmax(0)
        total = states[0] * weights[0].to(states[0].dtype)
        for state, weight in zip(states[1:], weights[1:], strict=True):
            total = total + state * weight.to(state.dtype)
        return total
