"""Full softmax attention: the Transformer."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any, Literal, get_args

import torch
from torch import Tensor, nn

from lra_bench.contracts import UserError

from ..kernels.devices import uses_gpu_form
from ..kernels.normalizers import NORMALIZERS
from ..kernels.rows import Use, row_attention
from ..kernels.softmax import grouped, softmax_attention
from ..kernels.step_attention import appended, key_offsets, step_attention
from ..mixer import Context, HeadMixer, MixerSpec
from .by_rows import adds_terms, attend_by_rows, attend_with_added, weigh_by_rows

Score = Literal["scaled", "dot", "bilinear", "reduced"]
Normalizer = Literal["softmax", "relu", "sigmoid", "entmax15"]


class SoftmaxAttention(HeadMixer):
    """Full attention: the softmax of scaled inner products of all queries and keys weights the values.

    Vaswani et al. 2017, arXiv 1706.03762. q (B, H, N, D), k and v (B, G, N, D) -> (B, H, N, D).
    O(N^2 D) time; O(N D) memory, because the score matrix is never stored, with or without dropout on the attention
    weights. If the position changes scores, they are computed in chunks of queries and recomputed in the backward pass.

    ``kv_heads`` below ``heads`` shares keys and values between heads (Ainslie et al. 2023, arXiv 2305.13245).
    ``score`` selects the score function: ``scaled`` is q · k / √D, ``dot`` is q · k, ``bilinear`` is q W k (both Luong
    et al. 2015, arXiv 1508.04025), ``reduced`` is (U q) · (V k) with U and V of ``rank``, by default D / 4. Each head
    has its own W, U and V; W is initialised to I / √D, U and V such that initial scores have the scale of ``scaled``.
    ``log_n`` multiplies the inner products of queries that attend to n > L keys by log n / log L, with L the training
    length, because the softmax spreads over more keys as n grows (Chiang and Cholak 2022, arXiv 2202.12172, who use
    log n at every length). Terms that a position adds to scores are not multiplied.
    """

    spec = MixerSpec(
        family="full",
        paper="Attention Is All You Need",
        arxiv="1706.03762",
        code="tensorflow/tensor2tensor@bafdc1b:tensor2tensor/layers/common_attention.py",
        causal="exact",
        equivariant=True,
        growth=2.0,
        positions=("embed", "rotate", "bias", "scores", "weight"),
        full_config={"score": "scaled", "kv_heads": None, "merge": None, "normalizer": "softmax"},
    )
    shows_heads = True
    has_step_form = True

    def __init__(
        self,
        width: int,
        heads: int,
        *,
        score: Score = "scaled",
        rank: int | None = None,
        log_n: bool = False,
        normalizer: Normalizer = "softmax",
        **common: Any,
    ) -> None:
        super().__init__(width, heads, **common)
        if normalizer not in NORMALIZERS:
            raise UserError(f"model.mixer.normalizer={normalizer}: must be one of {', '.join(NORMALIZERS)}")
        if score not in get_args(Score):
            raise UserError(
                f"model.mixer.score={score}: must be one of {', '.join(get_args(Score))}; "
                "for additive scores set model=score_additive"
            )
        if rank is not None and (rank < 1 or score != "reduced"):
            raise UserError(f"model.mixer.rank={rank}: must be at least 1 and requires model.mixer.score=reduced")
        self.score, self.log_n, self.normalizer, size = score, log_n, normalizer, self.head_dim
        self.scale = size**-0.5 if score == "scaled" else 1.0
        if score == "bilinear":
            self.between = nn.Parameter((torch.eye(size) * size**-0.5).repeat(heads, 1, 1))
        if score == "reduced":
            rank = rank or max(1, size // 4)
            self.reduce_query = nn.Parameter(torch.randn(heads, size, rank) * size**-0.5 * rank**-0.25)
            self.reduce_key = nn.Parameter(torch.randn(self.kv_heads, size, rank) * size**-0.5 * rank**-0.25)

    def restricts_from(self) -> int | None:
        """Return None: every token attends to all visible tokens."""
        return None

    def evaluation_knobs(self) -> Mapping[str, tuple[bool, ...]]:
        """Return the other value of ``log_n`` as the only evaluation knob."""
        return {"model.mixer.log_n": (not self.log_n,)}

    def forward(self, x: Tensor, context: Context) -> tuple[Tensor, Context]:
        """Project, attend and merge; rotary positions are applied in ``compared``, after the score's linear maps."""
        q, k, v = self.project(x)
        if context.keeps_memory:
            o, context = self._attend_to_stored(q, k, v, context)
            return self.finish(o, q, k, v, context)
        return self.finish(self.attend(q, k, v, context), q, k, v, context)

    def refuses_steps(self) -> str | None:
        """Also refuse position hooks that depend on unmapped keys, and scores that depend on the length."""
        if self.position is not None and self.position.hooks & {"scores", "weight"}:
            return f"position={self.position.name} has no step form"
        return super().refuses_steps() or ("model.mixer.log_n depends on the length" if self.log_n else None)

    def _attend_to_stored(self, q: Tensor, k: Tensor, v: Tensor, context: Context) -> tuple[Tensor, Context]:
        """Attend to the stored keys and values and the new ones, and store both; keys are stored as they are compared.

        The sequences must have no padding.
        """
        q, k = self.compared(q, k, context)
        memory = appended(context.memory, k=k, v=v)
        bias = step_bias(self, q, memory["k"], context)
        if self.normalizer == "softmax":
            o = step_attention(q, memory["k"], memory["v"], scale=self.scale, bias=bias)
        else:
            o = self._step_by_rows(q, memory["k"], memory["v"], bias)
        return o, context.replace(memory=memory)

    def _step_by_rows(self, q: Tensor, k: Tensor, v: Tensor, bias: Tensor | None) -> Tensor:
        """Compute ``step_attention`` with the weights of ``normalizer``."""

        def score(queries: Tensor, start: int, count: int) -> Tensor:
            products = self._products(queries, k[:, :, :count])
            return products if bias is None else products + bias[:, :, start : start + queries.shape[2], :count]

        return row_attention(q, v, score, causal=True, weigh=NORMALIZERS[self.normalizer])

    def attend(self, q: Tensor, k: Tensor, v: Tensor, context: Context) -> Tensor:
        """Apply softmax attention over all keys."""
        compared = self.compared(q, k, context)
        normal = self.normalizer == "softmax"
        if normal and (self.position is None or self.position.hooks <= {"embed", "rotate"}):
            return softmax_attention(
                *compared, v, padding=context.padding, causal=self.causal, scale=self.scale, dropout=self.drop_rate
            )
        unmapped = compared[0] is q and compared[1] is k
        if normal and uses_gpu_form(q) and adds_terms(self):
            return attend_with_added(self, q, k, v, context, compared, self.scale)
        weigh = NORMALIZERS[self.normalizer]
        return attend_by_rows(self, q, k, v, context, self._products, None if unmapped else compared, weigh=weigh)

    def use_weights(self, q: Tensor, k: Tensor, context: Context, use: Use, heads: int | None = None) -> Tensor:
        """Apply ``use`` to the attention weights, in chunks of queries, and return its results."""
        compared = self.compared(q, k, context)
        weigh = NORMALIZERS[self.normalizer]
        return weigh_by_rows(self, q, k, context, self._products, use, compared, heads=heads, weigh=weigh)

    def compared(self, q: Tensor, k: Tensor, context: Context) -> tuple[Tensor, Tensor]:
        """Return rotated queries and keys whose inner products are the scores, before the scale and position terms."""
        if self.score == "bilinear":
            q = q @ self.between
        elif self.score == "reduced":
            q, k = q @ self.reduce_query, k @ self.reduce_key
        q, k = self.apply_rotation(q, k, context)
        sharpness = sharpness_of_long_rows(k.shape[2], context, self.causal) if self.log_n else None
        return q if sharpness is None else q * sharpness.to(q.dtype), k

    def _products(self, q: Tensor, k: Tensor) -> Tensor:
        return grouped(q * self.scale, k.mT)


def step_bias(mixer: HeadMixer, q: Tensor, k: Tensor, context: Context) -> Tensor | None:
    """Return the position bias (1 or B, H, N, M) of the queries of the last tokens of the keys, None without one."""
    if mixer.position is None or "bias" not in mixer.position.hooks:
        return None
    last = context.positions[..., -1:]
    return mixer.position.bias(context.positions, last - key_offsets(q[:, :, -1:], k)[0])


def sharpness_of_long_rows(keys: int, context: Context, causal: bool) -> Tensor | None:
    """Return log n / log L, at least 1, for queries that attend to n keys after training on length L.

    The shape is (1 or B, 1, 1 or N, 1). Return None if no query attends to more than L keys. Prefix positions count
    in both n and L.
    """
    trained = max((context.train_length or keys) + context.prefix, 2)
    if keys <= trained:
        return None
    if causal:
        visible = torch.arange(1, keys + 1, device=context.positions.device)[None, :, None]
    elif context.padding is not None:
        visible = context.padding.lengths[:, None, None]
    else:
        visible = torch.tensor([[[keys]]], device=context.positions.device)
    return (visible[:, None].clamp(min=1).double().log() / math.log(trained)).clamp(min=1)
