"""BP-Transformer: tokens attend to spans that grow with the distance, spans attend to their tokens."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn

from lra_bench.contracts import UserError

from ..kernels.few import few_attention
from ..kernels.tree import edge_types, read_leaves, read_spans, span_counts
from ..mixer import Context, HeadMixer, MixerSpec, Padding
from .streams import joined, streams


class BPTransformer(HeadMixer):
    """Attention of a token to itself and, on either side, to k tokens, k spans of two tokens, k spans of four, etc.

    Ye et al. 2019, arXiv 1911.04070. x (B, N, E) -> (B, N, E). O(N k log(N / k)) time and scores, with
    k = ``neighbours``. Spans are the inner nodes of a binary tree over the tokens, about as many as tokens. They are
    rows before the tokens, are initialised to zero and attend to all their tokens in every layer. The keys of a token
    cover the sequence, or, if causal, the tokens up to it, exactly once: if a span is already covered by half, the
    other half takes its place. A learned vector for each type of edge (level, side and step) is added to keys; all
    levels above ``levels`` share the vectors of the last one. A CLS row attends to all tokens. Raises ``UserError`` if
    an option is below 1.

    Deviations from the paper: in each layer spans are updated before tokens instead of at the same time, so that their
    last update is not lost, because the outputs of tokens are used and not that of the root; tokens attend to the sum
    of spans and their update.
    """

    spec = MixerSpec(
        family="sparse",
        paper="BP-Transformer: Modelling Long-Range Context via Binary Partitioning",
        arxiv="1911.04070",
        code="yzh119/BPT@3ce980d:modules/attention.py",
        causal="exact",
        growth=1.2,  # effective exponent of N log N between a few hundred and a few thousand tokens
    )
    separates_cls = True
    not_decayed = ("types",)

    def __init__(self, width: int, heads: int, *, neighbours: int = 8, levels: int = 6, **common: Any) -> None:
        super().__init__(width, heads, **common)
        if neighbours < 1:
            raise UserError(f"model.mixer.neighbours={neighbours}: must be at least 1")
        if levels < 1:
            raise UserError(f"model.mixer.levels={levels}: must be at least 1")
        self.neighbours, self.levels = neighbours, levels
        self.types = nn.Parameter(torch.empty(edge_types(neighbours, levels, self.causal), self.head_dim))
        nn.init.xavier_uniform_(self.types)

    def restricts_from(self) -> int:
        """Return k + 3, the smallest length at which a token reads a span of two tokens."""
        return self.neighbours + 3

    def prefix_rows(self, x: Tensor, context: Context) -> Tensor:
        """Return the spans (B, spans, E) of the tokens x (B, N, E), all zero."""
        return x.new_zeros(x.shape[0], sum(span_counts(x.shape[1])), x.shape[2])

    def forward(self, x: Tensor, context: Context) -> tuple[Tensor, Context]:
        """Update the spans from the tokens, then the tokens from spans and tokens."""
        rows, tokens, padding = streams(self, x, context)
        k, v = self._split_repeated(self.key(tokens)), self._split_repeated(self.value(tokens))
        update = self._row_updates(rows, k, v, padding)
        spans = sum(span_counts(tokens.shape[1]))
        updated = rows[:, :spans] + update[:, :spans]
        o = read_spans(
            self.split(self.query(tokens)),
            torch.cat((self._split_repeated(self.key(updated)), k), 2),
            torch.cat((self._split_repeated(self.value(updated)), v), 2),
            self.types,
            neighbours=self.neighbours,
            levels=self.levels,
            causal=self.causal,
            # With right padding and a causal mask, no real token attends to padding.
            padding=None if self.causal else padding,
            dropout=self.drop_rate,
        )
        return joined(update, self.merge(o), context), context

    def _row_updates(self, rows: Tensor, k: Tensor, v: Tensor, padding: Padding | None) -> Tensor:
        """Return the updates (B, P, E) of the P rows before the tokens.

        Spans attend to their tokens, and a CLS row to all tokens.
        """
        q = self.split(self.query(rows))
        spans = sum(span_counts(k.shape[2]))
        o = read_leaves(q[:, :, :spans], k, v, padding=padding, dropout=self.drop_rate)
        if spans < q.shape[2]:
            visible = None if padding is None else padding.key_mask()
            o = torch.cat((o, few_attention(q[:, :, spans:], k, v, visible=visible, dropout=self.drop_rate)), 2)
        return self.merge(o)

    def _split_repeated(self, x: Tensor) -> Tensor:
        """Split x (B, N, G·D) into heads and repeat shared ones, to (B, H, N, D)."""
        x = self.split(x)
        return x if self.heads == self.kv_heads else x.repeat_interleave(self.heads // self.kv_heads, 1)
