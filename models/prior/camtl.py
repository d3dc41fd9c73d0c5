"""Attention with a learned prior on blocks of the diagonal, conditioned on the task or on the input."""

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
DEVIATION = 0.02  # of the task's vector, as large as that of a token in BERT


class ConditionalPrior(AddedPrior):
    """Scores gain a matrix that has ``blocks`` blocks (1 + γ(z)) A + β(z) on its diagonal, and zeros elsewhere.

    CA-MTL, Pilault, El hattami, Pal 2021, arXiv 2009.09139. q (B, H, N, D), k and v (B, G, N, D) -> (B, H, N, D).
    A is learned for each block and begins at zero; γ and β are linear in z, one number for each column of a block.
    Heads share the matrix, and the upper half of the layers has one. Parameters O(N² / blocks + E N / blocks).
    z is a learned vector where ``condition`` is ``task``; with one task, γ and β are then constants.
    ``input``, which is ours and not causal, takes the row's mean key instead.
    Deviates: z is each layer's own; the paper's conditional norms and adapters, which serve many tasks, are left out.
    The authors' number of blocks, the width by the length, is less than one here; 64 gives each token as many columns
    as a window at equal budget has.
    """

    spec = replace(
        AddedPrior.spec,
        paper="Conditionally Adaptive Multi-Task Learning",
        arxiv="2009.09139",
        length="maximum",
        materialises="parameters",
    )

    def __init__(
        self, width: int, heads: int, *, blocks: int = 64, condition: Condition = "task", **common: Any
    ) -> None:
        super().__init__(width, heads, **common)
        if blocks < 1:
            raise UserError(f"model.mixer.blocks={blocks}: must be at least 1")
        if condition not in get_args(Condition):
            raise UserError(f"model.mixer.condition={condition}: is none of {', '.join(get_args(Condition))}")
        if condition == "input" and self.causal:
            raise UserError("model.mixer.condition=input: a row's mean key would tell of later tokens; set task")
        self.size = -(-self.max_length // blocks)
        conditioned = self.layer >= self.depth // 2
        inputs = width if condition == "task" else self.kv_heads * self.head_dim
        self.blocks = nn.Parameter(torch.zeros(self.max_length, self.size)) if conditioned else None
        self.adapt = linear(inputs, 2 * self.size) if conditioned else None
        self.task = nn.Parameter(DEVIATION * torch.randn(1, width)) if conditioned and condition == "task" else None

    def prior(self, q: Tensor, k: Tensor, context: Context) -> tuple[Prior, tuple[Tensor, ...]] | None:
        """The blocks, spread over the columns that they stand at."""
        if self.blocks is None or self.adapt is None:
            return None
        z = self.task if self.task is not None else segment_mean(k, 1, context.padding)[0].to(k.dtype).flatten(1)
        scale, shift = self.adapt(z)[:, None, None].chunk(2, -1)
        length, size = q.shape[2], self.size
        first = torch.arange(length, device=q.device) // size * size
        columns = first[:, None] + torch.arange(size, device=q.device)

        def prior(start: int, queries: int, keys: int, own: Tensor) -> Tensor:
            filled = (1 + scale) * own + shift
            places = columns[start : start + queries].expand_as(filled)
            # As wide as whole blocks are: the last one may reach beyond the keys.
            wide = filled.new_zeros(*filled.shape[:-1], length + size)
            return wide.scatter(-1, places, filled)[..., :keys]

        return prior, (self.blocks[:length],)
