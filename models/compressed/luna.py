"""Attention through a few rows that travel from layer to layer."""

from __future__ import annotations

import math
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from lra_bench.contracts import UserError

from ..kernels.dropout import dropout
from ..kernels.few import few_attention
from ..kernels.linear import causal_linear_sums, full_precision
from ..mixer import Context, HeadMixer, MixerSpec


class Luna(HeadMixer):
    """Packed rows P (l, E) read the tokens, then the tokens read what was packed: two attentions of l by N.

    Ma et al. 2021, arXiv 2106.01540. x (B, N, E) -> (B, N, E). O(N l E) time; O(N E) memory, causal O(N √(l D) H).
    ``packed`` is l. Keys and values of an attention are one projection, as in the authors' code: ``key`` makes those
    that P reads from x, ``value`` those that x reads from the packed rows. The first layer learns P; each layer hands
    P + packed rows on, and the next one normalises it with a norm of its own.
    The causal form packs by running means with weights log2(1 + 2^(P·k)), which need no normaliser; P is then the
    learned rows in every layer, as packed rows of the last token would show all layers above the future.
    """

    spec = MixerSpec(
        family="compressed",
        paper="Luna: Linear Unified Nested Attention",
        arxiv="2106.01540",
        causal="exact",
        equivariant=True,
        carries=("luna",),
    )

    def __init__(self, width: int, heads: int, *, packed: int = 128, **common: Any) -> None:
        super().__init__(width, heads, **common)
        if packed < 1:
            raise UserError(f"model.mixer.packed={packed}: must be at least 1")
        if self.kv_heads != heads:
            raise UserError("model.mixer.kv_heads: Luna's keys are its values in every head; leave it out")
        if self.head_dim * heads != width:
            raise UserError("backbone.head_dim: Luna adds heads to rows of the model's width; leave it out")
        self.packed_query = nn.Linear(width, width)
        nn.init.xavier_uniform_(self.packed_query.weight)
        nn.init.zeros_(self.packed_query.bias)
        # As large as the normalised rows that later layers begin with.
        self.packed = nn.Parameter(torch.randn(1, packed, width)) if self.layer == 0 else None
        self.norm = nn.LayerNorm(width) if self.layer > 0 and not self.causal else None

    def forward(self, x: Tensor, context: Context) -> tuple[Tensor, Context]:
        """Pack, unpack, merge; hand on."""
        rows = context.carry["luna"] if self.packed is None else self.packed
        rows = rows if self.norm is None else self.norm(rows)
        asks, keys = self.split(self.packed_query(rows)), self.split(self.key(x))
        if self.causal:
            read = self._causal(self.split(self.query(x)), keys, self.split(self.value(x)), asks)
        else:
            visible = None if context.padding is None else context.padding.key_mask()
            asks = asks.expand(len(x), -1, -1, -1)
            packed = few_attention(asks, keys, keys, visible=visible, dropout=self.drop_rate)
            packed = packed.transpose(1, 2).flatten(2)
            values = self.split(self.value(packed))
            read = few_attention(self.split(self.query(x)), values, values, dropout=self.drop_rate)
            rows = rows + packed
        if self.layer + 1 < self.depth:
            # A copy: a sharded layer gives its own weights back after its forward.
            context = context.hand_on("luna", rows.clone() if self.causal else rows)
        return self.merge(read), context

    def _causal(self, q: Tensor, keys: Tensor, values: Tensor, asks: Tensor) -> Tensor:
        """Unpacking, for every token, what had been packed by then: q, keys, values (B, H, N, D), asks (B, H, l, D)."""
        with full_precision(q):
            q, keys, values, asks = (x.float() if x.dtype.itemsize < 4 else x for x in (q, keys, values, asks))
            scale = self.head_dim**-0.5
            weights = F.softplus(keys @ asks.mT * scale, beta=math.log(2))
            seen = torch.arange(1, q.shape[2] + 1, device=q.device, dtype=q.dtype)[:, None]
            scores = causal_linear_sums(q * scale, values, weights) / seen
            shares = dropout(scores.softmax(-1), self.drop_rate)
            return causal_linear_sums(shares, weights, values) / seen
