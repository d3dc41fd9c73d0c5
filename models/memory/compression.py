"""Compression of old hidden states: c adjacent ones become one, or the most used ones are kept."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor, nn

from lra_bench.contracts import UserError

COMPRESSIONS = ("max", "mean", "convolution", "dilated", "most_used")


class Compression(nn.Module):
    """Compress states (B, c K, E) to (B, K, E).

    Rae et al. 2019, arXiv 1911.05507. ``max`` and ``mean`` pool c adjacent states. ``convolution`` has kernel and
    stride c. ``dilated`` has two residual convolutions of kernel 3 with dilations 1 and 2 before it; the paper states
    no sizes. ``most_used`` keeps the K states with the largest ``used`` (B, c K) in their order, and has no gradient
    with respect to the choice.

    Args:
        kind: One of ``COMPRESSIONS``.
        rate: Number c of states per slot.
        width: Number of features E.
    """

    def __init__(self, kind: str, rate: int, width: int) -> None:
        super().__init__()
        if kind not in COMPRESSIONS:
            raise UserError(f"model.mixer.compression={kind}: must be one of {', '.join(COMPRESSIONS)}")
        if rate < 1:
            raise UserError(f"model.mixer.rate={rate}: must be at least 1")
        self.kind, self.rate = kind, rate
        convolutions = kind in ("convolution", "dilated")
        self.strided = nn.Conv1d(width, width, rate, rate) if convolutions else None
        self.dilated = nn.ModuleList(
            nn.Conv1d(width, width, 3, padding=dilation, dilation=dilation)
            for dilation in ((1, 2) if kind == "dilated" else ())
        )

    def forward(self, x: Tensor, used: Tensor | None = None) -> Tensor:
        """Return the compressed states of x (B, c K, E)."""
        if self.kind == "most_used":
            if used is None:
                raise ValueError("most_used needs the attention that each state received")
            kept = used.topk(x.shape[1] // self.rate, -1).indices.sort(-1).values
            return x.gather(1, kept[..., None].expand(-1, -1, x.shape[2]))
        if self.strided is None:
            blocks = x.unflatten(1, (-1, self.rate))
            return blocks.mean(2) if self.kind == "mean" else blocks.amax(2)
        channels = x.mT
        for layer in self.dilated:
            channels = channels + torch.relu(layer(channels))
        compressed: Tensor = self.strided(channels).mT
        return compressed

    def frozen(self, x: Tensor, used: Tensor | None = None) -> Tensor:
        """Return the same as ``forward``, with gradients with respect to x but not to the parameters."""
        constants: Mapping[str, Any] = {name: value.detach() for name, value in self.named_parameters()}
        found: Tensor = torch.func.functional_call(self, dict(constants), (x, used))
        return found
