"""From rows of the last layer to logits: pooling, and one head per kind of task."""

from __future__ import annotations

import torch
from torch import Tensor, nn

from lra_bench.contracts import TaskSpec

from .feedforward import FeedForward, linear
from .mixer import Padding

POOLINGS = ("mean", "cls", "last")
PAIR_FEATURES = {"nli": 4, "concatenation": 2}
"""Ways to join the vectors of two documents, and how many vectors long each is."""


def pool(x: Tensor, how: str, prefix: int, padding: Padding | None) -> Tensor:
    """One vector (B, E) for each row of the batch, from x (B, N, E) whose first ``prefix`` rows are no tokens.

    ``mean`` averages the real tokens, ``last`` takes the last of them, ``cls`` the row before the first.
    A row without tokens yields zeros, or with ``last`` its first place.
    """
    if how == "cls":
        return x[:, prefix - 1]
    if how == "last":
        if padding is None:
            return x[:, -1]
        last = (padding.lengths - 1).clamp(min=prefix)
        return x[torch.arange(x.shape[0], device=x.device), last]
    if padding is None:
        return x[:, prefix:].mean(1)
    count = (padding.lengths - prefix).clamp(min=1)
    return padding.zero(x)[:, prefix:].sum(1) / count[:, None]


class Head(nn.Module):
    """Logits of a task: for one pooled vector, for two of them (matching), or for every token.

    Whole rows pass through a hidden layer, as in the Long Range Arena (Tay et al. 2021, arXiv 2011.04006). The two
    documents x, y of a pair enter as (x, y, x·y, x − y) with ``pair_features`` ``nli``, as that paper has it, or as
    (x, y) with ``concatenation``, as its released code has it. Tokens pass through one linear layer.
    """

    def __init__(
        self, spec: TaskSpec, width: int, hidden: int, activation: str, dropout: float, pair_features: str = "nli"
    ) -> None:
        super().__init__()
        self.pairs = spec.kind == "matching"
        self.pair_features = pair_features
        self.layers: nn.Module = (
            linear(width, spec.classes)
            if spec.per_token
            else FeedForward(
                width * (PAIR_FEATURES[pair_features] if self.pairs else 1), hidden, activation, dropout, spec.classes
            )
        )

    def forward(self, x: Tensor) -> Tensor:
        """x (B, E), (2B, E) with both documents of a pair in turn, or (B, N, E) to logits."""
        if self.pairs:
            first, second = x.unflatten(0, (-1, 2)).unbind(1)
            own = [first * second, first - second] if self.pair_features == "nli" else []
            x = torch.cat([first, second, *own], -1)
        logits: Tensor = self.layers(x)
        return logits
