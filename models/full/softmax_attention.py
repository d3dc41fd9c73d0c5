"""Full softmax attention: the Transformer."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any, Literal, get_args

import torch
from torch import Tensor, nn

from lra_bench.contracts import UserError

from ..kernels.rows import Use
from ..kernels.softmax import grouped, softmax_attention
from ..mixer import Context, HeadMixer, MixerSpec
from .by_rows import attend_by_rows, weigh_by_rows

Score = Literal["scaled", "dot", "bilinear", "reduced"]


class SoftmaxAttention(HeadMixer):
    """Every token weighs every other by the softmax of their scaled inner product.

    Vaswani et al. 2017, arXiv 1706.03762. q (B, H, N, D), k and v (B, G, N, D) -> (B, H, N, D).
    O(N^2 D) time; O(N D) memory, for the scores are never held whole, with dropout on their weights or without.
    Positions that change scores are computed for some rows at a time, and again in the backward pass.
    ``kv_heads`` below ``heads`` shares keys and values (Ainslie et al. 2023, arXiv 2305.13245).
    ``score`` compares queries and keys otherwise: ``dot`` by q · k, ``bilinear`` by q W k (both Luong et al. 2015,
    arXiv 1508.04025), ``reduced`` by (U q) · (V k) with U, V of ``rank``, by default D / 4. W, U, V belong to heads;
    W begins as I / √D and U, V so that scores begin as large as scaled ones.
    ``log_n`` multiplies the products of queries that see n > L keys by log n / log L, L being the training length, for
    softmax spreads over more keys the more there are (Chiang and Cholak 2022, arXiv 2202.12172, with log n at every
    length); what a position adds to scores stays.
    """

    spec = MixerSpec(
        family="full",
        paper="Attention Is All You Need",
        arxiv="1706.03762",
        causal="exact",
        equivariant=True,
        growth=2.0,
        positions=("embed", "rotate", "bias", "scores", "weight"),
        full_config={"score": "scaled", "kv_heads": None, "merge": None},
    )
    shows_heads = True

    def __init__(
        self,
        width: int,
        heads: int,
        *,
        score: Score = "scaled",
        rank: int | None = None,
        log_n: bool = False,
        **common: Any,
    ) -> None:
        super().__init__(width, heads, **common)
        if score not in get_args(Score):
            raise UserError(
                f"model.mixer.score={score}: is none of {', '.join(get_args(Score))}; "
                "additive scores are a system of their own, model=score_additive"
            )
        if rank is not None and (rank < 1 or score != "reduced"):
            raise UserError(f"model.mixer.rank={rank}: must be at least 1, and belongs to model.mixer.score=reduced")
        self.score, self.log_n, size = score, log_n, self.head_dim
        self.scale = size**-0.5 if score == "scaled" else 1.0
        if score == "bilinear":
            self.between = nn.Parameter((torch.eye(size) * size**-0.5).repeat(heads, 1, 1))
        if score == "reduced":
            rank = rank or max(1, size // 4)
            self.reduce_query = nn.Parameter(torch.randn(heads, size, rank) * size**-0.5 * rank**-0.25)
            self.reduce_key = nn.Parameter(torch.randn(self.kv_heads, size, rank) * size**-0.5 * rank**-0.25)

    def evaluation_knobs(self) -> Mapping[str, tuple[bool, ...]]:
        """The other choice of ``log_n``."""
        return {"model.mixer.log_n": (not self.log_n,)}

    def forward(self, x: Tensor, context: Context) -> tuple[Tensor, Context]:
        """Project, attend, merge; it is what ``attend`` compares that positions turn."""
        q, k, v = self.project(x)
        return self.finish(self.attend(q, k, v, context), q, k, v, context)

    def attend(self, q: Tensor, k: Tensor, v: Tensor, context: Context) -> Tensor:
        """Softmax attention over all keys."""
        compared = self.compared(q, k, context)
        if self.position is None or self.position.hooks <= {"embed", "rotate"}:
            return softmax_attention(
                *compared, v, padding=context.padding, causal=self.causal, scale=self.scale, dropout=self.drop_rate
            )
        own = compared[0] is q and compared[1] is k
        return attend_by_rows(self, q, k, v, context, self._products, None if own else compared)

    def use_weights(self, q: Tensor, k: Tensor, context: Context, use: Use) -> Tensor:
        """What ``use`` makes of the weights, by rows."""
        compared = self.compared(q, k, context)
        return weigh_by_rows(self, q, k, context, self._products, use, compared)

    def compared(self, q: Tensor, k: Tensor, context: Context) -> tuple[Tensor, Tensor]:
        """Queries and keys, turned, whose inner products are the scores, but for the scale and what positions add."""
        if self.score == "bilinear":
            q = q @ self.between
        elif self.score == "reduced":
            q, k = q @ self.reduce_query, k @ self.reduce_key
        q, k = self.turn(q, k, context)
        sharpness = sharpness_of_long_rows(k.shape[2], context, self.causal) if self.log_n else None
        return q if sharpness is None else q * sharpness.to(q.dtype), k

    def _products(self, q: Tensor, k: Tensor) -> Tensor:
        return grouped(q * self.scale, k.mT)


def sharpness_of_long_rows(keys: int, context: Context, causal: bool) -> Tensor | None:
    """log n / log L, at least 1, of queries that see n keys after training on L: (1 or B, 1, 1 or N, 1).

    None where no query sees more than L, prefix rows counted on both sides.
    """
    trained = max((context.train_length or keys) + context.prefix, 2)
    if keys <= trained:
        return None
    if causal:
        seen = torch.arange(1, keys + 1, device=context.positions.device)[None, :, None]
    elif context.padding is not None:
        seen = context.padding.lengths[:, None, None]
    else:
        seen = torch.tensor([[[keys]]], device=context.positions.device)
    return (seen[:, None].clamp(min=1).double().log() / math.log(trained)).clamp(min=1)
