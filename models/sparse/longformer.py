"""Longformer: sliding-window attention with a few global tokens."""

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
    """Attention of tokens to a window and to global tokens, and of global tokens to all tokens.

    Beltagy et al. 2020, arXiv 2004.05150. x (B, N, E) -> (B, N, E). O(N (w + g) D) time, O(N D) memory in addition to
    masks. Global tokens have separate projections for their own attention. Keys of the window and of global tokens are
    in one softmax, none of them twice.

    Deviation from the paper: global tokens of a causal model attend only to preceding tokens and themselves; the
    paper's causal model has none, which is also the default here.

    Args:
        width: Model width E.
        heads: Number of heads H.
        dilation: Distance between the tokens of a window, for all heads or a list with one for each head.
        global_tokens: Number g of leading rows that are global, including prefix rows: with one, the CLS row, or the
            first token if there is no CLS row. By default 1, or 0 if causal.
        window: Number w of tokens on each side, for all layers or a list with one for each layer. The window of 512 in
            the paper is 256 here.
        common: Options of ``HeadMixer``.

    Raises:
        UserError: If an option is invalid, or ``kv_heads`` differs from ``heads`` and heads have different dilations.
    """

    spec = MixerSpec(
        family="sparse",
        paper="Longformer: The Long-Document Transformer",
        arxiv="2004.05150",
        code="allenai/longformer@caefee6:longformer/longformer.py",
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

    def restricts_from(self) -> int:
        """Return w + g + 2, or g + 2 if a head has a dilation, which skips adjacent tokens."""
        return super().restricts_from() + self.global_tokens

    def forward(self, x: Tensor, context: Context) -> tuple[Tensor, Context]:
        """Compute attention of all rows in their windows, then replace the outputs of global rows."""
        count = min(self.global_tokens, x.shape[1])
        q, k, v = self.project(x)
        o = self.attend(*self.apply_rotation(q, k, context), v, context)
        if count:
            o = torch.cat((self._global_rows(x, count, context), o[:, :, count:]), 2)
        return self.finish(o, q, k, v, context)

    def attend(self, q: Tensor, k: Tensor, v: Tensor, context: Context) -> Tensor:
        """Compute attention in windows and to global tokens; the outputs of global tokens are unspecified."""
        return self.windows(q, k, v, context, leading=min(self.global_tokens, q.shape[2]))

    def _global_rows(self, x: Tensor, count: int, context: Context) -> Tensor:
        """Return the outputs (B, H, count, D) of the first ``count`` rows, which attend to all rows unless causal."""
        visible = x[:, :count] if self.causal else x
        q, k, v = self.global_query(x[:, :count]), self.global_key(visible), self.global_value(visible)
        q, k = self.apply_rotation(self.split(q), self.split(k), context)
        padding = None if self.causal else context.padding
        return softmax_attention(q, k, self.split(v), padding=padding, causal=self.causal, dropout=self.drop_rate)
