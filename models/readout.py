"""Pooling of the last layer's hidden states, and the output head of each kind of task."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor, nn

from lra_bench.contracts import TaskSpec

from .feedforward import FeedForward, linear
from .mixer import Padding
from .positions.sinusoidal import sinusoids

PAIR_FEATURES = {"nli": 4, "concatenation": 2}
"""Ways to combine the vectors of two documents, with the input width of the head in multiples of E."""


def pool(x: Tensor, how: str, prefix: int, padding: Padding | None) -> Tensor:
    """Pool x (B, N, E) over positions into one vector per sequence (B, E).

    ``mean`` averages the tokens, ``first`` and ``last`` take the first and the last token, ``cls`` the vector in front
    of the first token. A sequence without tokens gives zeros, with ``first`` and ``last`` the first position after the
    prefix.

    Args:
        x: Hidden states (B, N, E).
        how: One of these names.
        prefix: Number of leading positions that are not tokens.
        padding: Padding of the batch; None for none.
    """
    if how == "cls":
        return x[:, prefix - 1]
    if how == "first":
        return x[:, prefix]
    if how == "last":
        if padding is None:
            return x[:, -1]
        last = (padding.lengths - 1).clamp(min=prefix)
        return x[torch.arange(x.shape[0], device=x.device), last]
    if padding is None:
        return x[:, prefix:].mean(1)
    count = (padding.lengths - prefix).clamp(min=1)
    return padding.zero(x)[:, prefix:].sum(1) / count[:, None]


def at_places(state: Tensor, length: int) -> Tensor:
    """Return one state per sequence (B, E) plus the sinusoids of each of ``length`` positions, (B, N, E)."""
    places = torch.arange(length, device=state.device)
    return state[:, None] + sinusoids(places, state.shape[-1]).to(state.dtype)


class StateDecoder(nn.Sequential):
    """Decode the tokens of a sequence from one state: the results of ``at_places`` (B, N, E) to logits (B, N, V).

    A network of two layers as wide as the state, with an RMSNorm in front of each and of the output layer, is applied
    at every position. Poli et al. 2024 (MAD), arXiv 2403.17844; code: athms/mad-lab@0f49a45:mad/model/auto_encoder.py.

    Deviation from the authors' code: weights have Xavier-uniform initial values (there a deviation of 0.02).

    Args:
        width: Number of features E.
        classes: Number of classes V.
    """

    def __init__(self, width: int, classes: int) -> None:
        layers: list[nn.Module] = []
        for _ in range(2):
            layers += [nn.RMSNorm(width), linear(width, width), nn.GELU()]
        super().__init__(*layers, nn.RMSNorm(width), linear(width, classes))


class Head(nn.Module):
    """Output head: logits from one pooled vector, from two of them (matching), or from every token.

    Pooled vectors pass through a hidden layer, as in the Long Range Arena (Tay et al. 2021, arXiv 2011.04006). Tokens
    pass through one linear layer.

    Args:
        spec: Specification of the task.
        width: Number of features E.
        hidden: Width of the hidden layer, or the widths of several.
        activation: Activation of the hidden layers.
        dropout: Dropout probability in the hidden layers.
        pair_features: Input features for two documents x and y: (x, y, x·y, x − y) with ``nli``, as in the paper, or
            (x, y) with ``concatenation``, as in its released code.
        layers: Layers that map token states to logits; None for one linear layer. Ignored for pooled vectors.
    """

    def __init__(
        self,
        spec: TaskSpec,
        width: int,
        hidden: int | Sequence[int],
        activation: str,
        dropout: float,
        pair_features: str = "nli",
        layers: nn.Module | None = None,
    ) -> None:
        super().__init__()
        self.pairs = spec.kind == "matching"
        self.pair_features = pair_features
        self.layers: nn.Module = (
            (layers or linear(width, spec.classes))
            if spec.per_token
            else FeedForward(
                width * (PAIR_FEATURES[pair_features] if self.pairs else 1),
                hidden,
                activation,
                dropout,
                spec.classes,
            )
        )

    def forward(self, x: Tensor) -> Tensor:
        """Return the logits of x: (B, E), (B, N, E), or (2B, E) with the documents of each pair adjacent."""
        if self.pairs:
            first, second = x.unflatten(0, (-1, 2)).unbind(1)
            interactions = [first * second, first - second] if self.pair_features == "nli" else []
            x = torch.cat([first, second, *interactions], -1)
        logits: Tensor = self.layers(x)
        return logits
