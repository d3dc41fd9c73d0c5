"""Collaborative attention: all heads share the projections of queries and keys."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn

from lra_bench.contracts import UserError

from ..full.by_rows import attend_by_rows, weigh_by_rows
from ..kernels.rows import Use
from ..kernels.softmax import grouped, softmax_attention
from ..mixer import Context, HeadMixer, MixerSpec


class CollaborativeHeads(HeadMixer):
    """Attention in which all heads use the same queries and keys, with a separate weight per channel and head.

    Cordonnier, Loukas, Jaggi 2020, arXiv 2006.16362. x (B, N, E) -> (B, N, E). Scores of head h are (q ∘ m_h) · k plus
    w_h · x of the key's token, divided by √(S / H); each head has its own values. ``shared_width`` is S, by default
    three quarters of the total width of the heads, which keeps the body within 10 % of a Transformer's parameters.
    O(N^2 H S) time, O(N H S) memory. The projections of queries and keys have no bias; w_h has the effect of a bias of
    the queries.
    """

    spec = MixerSpec(
        family="heads",
        paper="Multi-Head Attention: Collaborate Instead of Concatenate",
        arxiv="2006.16362",
        code="epfml/collaborative-attention@5b05408:src/collaborative_attention/collaborative_attention.py",
        causal="exact",
        equivariant=True,
        growth=2.0,
        positions=("embed", "bias", "weight"),
    )

    def __init__(self, width: int, heads: int, *, shared_width: int | None = None, **common: Any) -> None:
        super().__init__(width, heads, **common)
        if shared_width is not None and shared_width < 1:
            raise UserError(f"model.mixer.shared_width={shared_width}: must be at least 1")
        if self.kv_heads != heads:
            raise UserError("model.mixer.kv_heads: all heads already share their keys; leave it out")
        shared = shared_width or max(1, 3 * heads * self.head_dim // 4)
        self.scale = (shared / heads) ** -0.5
        self.query, self.key = nn.Linear(width, shared, bias=False), nn.Linear(width, shared, bias=False)
        self.content = nn.Linear(width, heads, bias=False)
        for linear in (self.query, self.key, self.content):
            nn.init.xavier_uniform_(linear.weight)
        self.mixing = nn.Parameter(0.2 * torch.randn(heads, shared))

    def restricts_from(self) -> int | None:
        """Return None: every token attends to all visible tokens."""
        return None

    def project(self, x: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """Return queries (B, H, N, S + H), keys (B, 1, N, S + H) and values (B, H, N, D) of x (B, N, E).

        The last H channels of the keys are w_h · x; those of the queries select the term of the head.
        """
        v = self.split(self.value(x))
        queries = self.query(x)[:, None] * self.mixing[:, None].to(v.dtype)
        selectors = torch.eye(self.heads, dtype=v.dtype, device=x.device)[:, None].expand(*queries.shape[:3], -1)
        keys = torch.cat((self.key(x), self.content(x)), -1)
        return torch.cat((queries, selectors), -1), keys[:, None], v

    def attend(self, q: Tensor, k: Tensor, v: Tensor, context: Context) -> Tensor:
        """Apply softmax attention over all keys."""
        if self.position is not None and self.position.hooks - {"embed"}:
            return attend_by_rows(self, q, k, v, context, self._products)
        return softmax_attention(
            q,
            k.expand(-1, self.heads, -1, -1),
            v,
            padding=context.padding,
            causal=self.causal,
            scale=self.scale,
            dropout=self.drop_rate,
        )

    def use_weights(self, q: Tensor, k: Tensor, context: Context, use: Use, heads: int | None = None) -> Tensor:
        """Apply ``use`` to the attention weights, in chunks of queries, and return its results."""
        return weigh_by_rows(self, q, k, context, self._products, use, heads=heads)

    def _products(self, q: Tensor, k: Tensor) -> Tensor:
        return grouped(q * self.scale, k.mT)
