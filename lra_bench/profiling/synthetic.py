"""Generate a fixed batch with the shape of a task's batches at any length, for measurements of steps."""

from __future__ import annotations

import math
from dataclasses import replace

import torch

from lra_bench.contracts import Batch, TaskSpec


def spec_at(spec: TaskSpec, length: int) -> TaskSpec:
    """Return the specification with rows of ``length`` tokens.

    The grid of images becomes square if ``length`` is a square number, otherwise None.
    """
    if spec.grid is None or length == math.prod(spec.grid):
        return replace(spec, train_length=length)
    side = math.isqrt(length)
    return replace(spec, train_length=length, grid=(side, side) if side * side == length else None)


def synthetic_batch(spec: TaskSpec, batch_size: int, length: int, device: torch.device | str, seed: int = 0) -> Batch:
    """Generate a batch of random tokens or values and random targets for ``spec``, on ``device``, without padding.

    Tokens (B, N), or (B, 2, N) for matching, avoid id 0, which some models treat as padding. In generation half of them
    are the source. Values (B, N, C) are standard normal. Targets are (B,), or (B, N) if every token is scored. In
    language modelling no row begins a document, so that memory is used.
    """
    generator = torch.Generator().manual_seed(seed)
    shape = (batch_size, 2, length) if spec.kind == "matching" else (batch_size, length)
    tokens = values = None
    if spec.vocabulary_size is not None:
        least = min(1, spec.vocabulary_size - 1)
        tokens = torch.randint(least, spec.vocabulary_size, shape, generator=generator)
        if spec.separator is not None:
            tokens[tokens == spec.separator] = spec.vocabulary_size - 1
            tokens[:, length // 2] = spec.separator
    else:
        values = torch.randn(*shape, spec.channels or 1, generator=generator)
    scored = (batch_size, length) if spec.per_token else (batch_size,)
    extra = {"reset": torch.zeros(batch_size, dtype=torch.bool)} if spec.kind == "language_modeling" else {}
    return Batch(
        lengths=torch.full(shape[:-1], length),
        targets=torch.randint(spec.classes, scored, generator=generator),
        tokens=tokens,
        values=values,
        extra=extra,
    ).to(device)


def tokens_in(batch: Batch) -> int:
    """Return the number of tokens in the batch, without padding."""
    return int(batch.lengths.sum())
