"""Input embeddings of tokens and of continuous values."""

from __future__ import annotations

import torch
from torch import nn

from lra_bench.contracts import TaskSpec

DEVIATION = 0.25
"""Default standard deviation of the initial token, channel and position embeddings and of the CLS vector.

With smaller values the outputs of the blocks dominate the token embeddings. With 1, as in the Long Range Arena code,
learning starts later. Chosen by the number of steps until a Transformer of two layers solves ``task=recall`` and by the
bits per character after 800 steps of ``task=enwik8``: 0.02, 0.1, 0.25, 0.5 and 1 gave 3.33, 3.33, 3.19, 3.19 and 3.34.
"""


def embedding(spec: TaskSpec, width: int, scale: float = DEVIATION) -> nn.Module:
    """Return an embedding table for tokens, or a linear layer for values (B, N, C).

    Its weights are initialised normally with standard deviation ``scale``.
    """
    if spec.vocabulary_size is not None:
        table = nn.Embedding(spec.vocabulary_size, width)
        nn.init.normal_(table.weight, std=scale)
        return table
    assert spec.channels is not None
    layer = nn.Linear(spec.channels, width)
    nn.init.normal_(layer.weight, std=scale)
    nn.init.zeros_(layer.bias)
    return layer


def product_factors(rows: int, rank: int, width: int, scale: float) -> tuple[nn.Parameter, nn.Parameter]:
    """Return normal factors (rows, rank) and (rank, width) whose product has the standard deviation ``scale``."""
    deviation = scale**0.5 * rank**-0.25
    return nn.Parameter(torch.randn(rows, rank) * deviation), nn.Parameter(torch.randn(rank, width) * deviation)
