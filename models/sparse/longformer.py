"""Attention in a window, with a few tokens that see all and are seen by all."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor, nn

from lra_bench.contracts import UserError

from ..kernels.softmax import softmax_attention
from ..mixer import Context, MixerSpec
from .dilated_window import DilatedWindow


class Longformer(DilatedWindow):
    """Tokens see a window around them and the global tokens; these see every token, by projections of their own.

    Beltagy et al. 2020, arXiv 2004.05150. x (B, N, E) -> (B, N, E). O(N (w + g) D) time, O(N D) memory beside masks.
    ``window`` is one-sided (the paper's 512 is 256 here), one for all layers or a list of one for each; ``dilation`` is
    the distance between the tokens of a window, one for all heads or a list. The first ``global_tokens`` rows are
    global, prefix rows among them: a CLS row is global, or the first token where there is none. By default one is,
    none where the task is causal, as in the paper. All meet in one softmax, no key twice.
    Deviates: global tokens of a causal model, where asked for, see only what precedes them.
    """

    spec = MixerSpec(
        family="sparse",
        paper="Longformer: The Long-Document Transformer",
        arxiv="2004.05150",
        causal="exact",
        positions=("embed", "rotate"),
        full_config={"window": 1_000_000, "global_tokens": 0},
    )
    shows_heads = True

    def __init__(
        self,
        width: int,
        heads: int,
        *,
        dilation: int | Sequence[int] = 1,
        global_tokens: int | None = None,
        window: int | Sequence[int] = 64,
        **common: Any,
    ) -> None:
        super().__init__(width, heads, dilation=dilation, window=window, **common)
        self.global_tokens = (0 if self.causal else 1) if global_tokens is None else global_tokens
        if self.global_tokens < 0:
            raise UserError(f"model.mixer.global_tokens={global_tokens}: must not be negative")
        if self.global_tokens:
            self.global_query, self.global_key, self.global_value = (
                nn.Linear(width, groups * self.head_dim) for groups in (heads, self.kv_heads, self.kv_heads)
            )
            for linear in (self.global_query, self.global_key, self.global_value):
                nn.init.xavier_uniform_(linear.weight)
                nn.init.zeros_(linear.bias)

    def forward(self, x: Tensor, context: Context) -> tuple[Tensor, Context]:
        """Attention of all rows in their windows, then of the global ones to everything."""
        count = min(self.global_tokens, x.shape[1])
        q, k, v = self.project(x)
        o = self.attend(*self.turn(q, k, context), v, context)
        if count:
            o = torch.cat((self._global_rows(x, count, context), o[:, :, count:]), 2)
        return self.finish(o, q, k, v, context)

    def attend(self, q: Tensor, k: Tensor, v: Tensor, context: Context) -> Tensor:
        """Attention in windows and to global tokens; rows of global tokens are left to be replaced."""
        return self.windows(q, k, v, context, leading=min(self.global_tokens, q.shape[2]))

    def _global_rows(self, x: Tensor, count: int, context: Context) -> Tensor:
        """What the first ``count`` rows see of all rows, or of those up to themselves: (B, H, count, D)."""
        seen = x[:, :count] if self.causal else x
        q, k, v = self.global_query(x[:, :count]), self.global_key(seen), self.global_value(seen)
        q, k = self.turn(self.split(q), self.split(k), context)
        padding = None if self.causal else context.padding
        return softmax_attention(q, k, self.split(v), padding=padding, causal=self.causal, dropout=self.drop_rate)
