"""Tokens read spans that grow with their distance, spans read their tokens."""

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
    """A token reads itself and, on either side, ``neighbours`` tokens, as many spans of two, of four, and so on.

    Ye et al. 2019, arXiv 1911.04070. x (B, N, E) -> (B, N, E). Time and scores O(N k log(N / k)), k ``neighbours``.
    Spans are the nodes of a binary tree over the tokens, as many as tokens: rows before them, zero at first, which read
    all their tokens in every layer. What a token reads tiles the row, in a causal model all before it: where its way
    reaches the middle of a span, the half that is left takes that one's place. A learned vector for each type of edge,
    by level, side and step, is added to keys; of ``levels`` the last serves all above. A CLS row reads all tokens.
    Deviates: spans read before tokens do and not at once, half a layer's shift, so that what they read last is not lost
    where tokens are read out, and the root is not; tokens read their sum with what they read.
    """

    spec = MixerSpec(
        family="sparse",
        paper="BP-Transformer: Modelling Long-Range Context via Binary Partitioning",
        arxiv="1911.04070",
        causal="exact",
        growth=1.2,  # what N log N is between some hundred tokens and some thousand
    )

    def __init__(self, width: int, heads: int, *, neighbours: int = 8, levels: int = 6, **common: Any) -> None:
        super().__init__(width, heads, **common)
        if neighbours < 1:
            raise UserError(f"model.mixer.neighbours={neighbours}: must be at least 1")
        if levels < 1:
            raise UserError(f"model.mixer.levels={levels}: must be at least 1")
        self.neighbours, self.levels = neighbours, levels
        self.types = nn.Parameter(torch.empty(edge_types(neighbours, levels, self.causal), self.head_dim))
        nn.init.xavier_uniform_(self.types)

    def prefix_rows(self, x: Tensor, context: Context) -> Tensor:
        """The spans of the tokens x, (B, spans, E), all zero."""
        return x.new_zeros(x.shape[0], sum(span_counts(x.shape[1])), x.shape[2])

    def forward(self, x: Tensor, context: Context) -> tuple[Tensor, Context]:
        """Spans read, then tokens."""
        rows, tokens, padding = streams(self, x, context)
        k, v = self._shared(self.key(tokens)), self._shared(self.value(tokens))
        read = self._read_tokens(rows, k, v, padding)
        spans = sum(span_counts(tokens.shape[1]))
        told = rows[:, :spans] + read[:, :spans]
        o = read_spans(
            self.split(self.query(tokens)),
            torch.cat((self._shared(self.key(told)), k), 2),
            torch.cat((self._shared(self.value(told)), v), 2),
            self.types,
            neighbours=self.neighbours,
            levels=self.levels,
            causal=self.causal,
            # A real token of a right-padded causal row reads what ends before it.
            padding=None if self.causal else padding,
            dropout=self.drop_rate,
        )
        return joined(read, self.merge(o), context), context

    def _read_tokens(self, rows: Tensor, k: Tensor, v: Tensor, padding: Padding | None) -> Tensor:
        """What the rows before the tokens read: spans their tokens, and a CLS row all of them."""
        q = self.split(self.query(rows))
        spans = sum(span_counts(k.shape[2]))
        o = read_leaves(q[:, :, :spans], k, v, padding=padding, dropout=self.drop_rate)
        if spans < q.shape[2]:
            visible = None if padding is None else padding.key_mask()
            o = torch.cat((o, few_attention(q[:, :, spans:], k, v, visible=visible, dropout=self.drop_rate)), 2)
        return self.merge(o)

    def _shared(self, x: Tensor) -> Tensor:
        """(B, N, G·D) to (B, H, N, D)."""
        x = self.split(x)
        return x if self.heads == self.kv_heads else x.repeat_interleave(self.heads // self.kv_heads, 1)
