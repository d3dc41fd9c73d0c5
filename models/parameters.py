"""Parameters of a network: their number by part, and the projections that an option initialises."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from torch import nn

from .feedforward import FeedForward
from .mixer import HeadMixer
from .readout import Head


def parameter_count(module: nn.Module) -> int:
    """Return the number of parameters of ``module``; a complex number counts as two."""
    return sum(parameter.numel() * (1 + parameter.is_complex()) for parameter in module.parameters())


def inactive_parameter_count(module: nn.Module) -> int:
    """Return the number of parameters of ``module`` that one token does not use, such as those of other experts."""
    return sum(getattr(each, "inactive_parameters", 0) for each in module.modules())


def projections(network: nn.Module) -> Iterator[nn.Linear]:
    """Yield the layers of ``network`` that ``backbone.projection_init`` initialises."""
    for module in network.modules():
        layers: list[Any] = []
        if isinstance(module, HeadMixer):
            layers = [getattr(module, name, None) for name in ("query", "key", "value", "output")]
        elif isinstance(module, FeedForward):
            layers = list(module)
        elif isinstance(module, Head):
            layers = [module.layers]
        yield from (layer for layer in layers if isinstance(layer, nn.Linear))
