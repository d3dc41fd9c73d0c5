"""CA-MTL: attention with a learned block-diagonal prior, conditioned on the task or on the input."""

from __future__ import annotations

from dataclasses import replace
from typing import Any, Literal, get_args

import torch
from torch import Tensor, nn

from lra_bench.contracts import UserError

from ..feedforward import linear
from ..full.by_rows import Prior
from ..kernels.segments import segment_mean
from ..mixer import Context
from .added_prior import AddedPrior

Condition = Literal["task", "input"]
DEVIATION = 0.02
"""Standard deviation of the initial task vector, equal to that of token embeddings in BERT."""


class ConditionalPrior(AddedPrior):
    """Add to the scores a block-diagonal matrix with the blocks (1 + γ(z)) A + β(z).

    CA-MTL, Pilault, El hattami, Pal 2021, arXiv 2009.09139. q (B, H, N, D), k and v (B, G, N, D) -> (B, H, N, D).
    A is learned for each block and initialised to zero. γ and β are linear functions of z with one value for each
    column of a block. All heads share the matrix, and only the upper half of the layers has one.
    O(N² / blocks + E N / blocks) parameters.

    ``condition`` selects z. With ``task``, z is a learned vector; since a model is trained on one task, γ and β are
    then constants. ``input``, which is not in the paper and not causal, uses the mean key of the sequence.
    Raises ``UserError`` if an option is invalid, or ``condition=input`` is set for a causal model.

    Deviations from the paper: each layer has its own z; conditional layer normalisation and adapters, which are
    intended for many tasks, are omitted. The authors use width / length ``blocks``, which is below one at the lengths
    of this benchmark; with the default of 64 a token has as many columns as a sliding window has at equal budget.
    """

    spec = replace(
        AddedPrior.spec,
        paper="Conditionally Adaptive Multi-Task Learning",
        arxiv="2009.09139",
        code="CAMTL/CA-MTL@1e6ebb7:src/model/encoders/conditional_modules.py",
        length="maximum",
        materialises="parameters",
    )
    not_decayed = ("blocks", "task")

    def __init__(
        self, width: int, heads: int, *, blocks: int = 64, condition: Condition = "task", **common: Any
    ) -> None:
        super().__init__(width, heads, **common)
        if blocks < 1:
            raise UserError(f"model.mixer.blocks={blocks}: must be at least 1")
        if condition not in get_args(Condition):
            raise UserError(f"model.mixer.condition={condition}: must be one of {', '.join(get_args(Condition))}")
        if condition == "input" and self.causal:
            raise UserError(
                "model.mixer.condition=input: a causal model must not use the mean of all keys; set task instead"
            )
        self.size = -(-self.max_length // blocks)
        conditioned = self.layer >= self.depth // 2
        inputs = width if condition == "task" else self.kv_heads * self.head_dim
        self.blocks = nn.Parameter(torch.zeros(self.max_length, self.size)) if conditioned else None
        self.adapt = linear(inputs, 2 * self.size) if conditioned else None
        self.task = nn.Parameter(DEVIATION * torch.randn(1, width)) if conditioned and condition == "task" else None

    def prior(self, q: Tensor, k: Tensor, context: Context) -> tuple[Prior, tuple[Tensor, ...]] | None:
        """Return a prior that writes each query's row of its block to the columns of the block."""
        if self.blocks is None or self.adapt is None:
            return None
        z = self.task if self.task is not None else segment_mean(k, 1, context.padding)[0].to(k.dtype).flatten(1)
        scale, shift = self.adapt(z)[:, None, None].chunk(2, -1)
        length, size = q.shape[2], self.size
        first = torch.arange(length, device=q.device) // size * size
        columns = first[:, None] + torch.arange(size, device=q.device)

        def prior(start: int, queries: int, keys: int, entries: Tensor) -> Tensor:
            filled = (1 + scale) * entries + shift
            places = columns[start : start + queries].expand_as(filled)
            # Padded by one block, because the last block may extend beyond the keys.
            wide = filled.new_zeros(*filled.shape[:-1], length + size)
            return wide.scatter(-1, places, filled)[..., :keys]

        return prior, (self.blocks[:length],)
