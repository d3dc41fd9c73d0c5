"""Tokens in a ring around one row that reads and is read by all of them."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from ..feedforward import linear
from ..kernels.dropout import dropout
from ..kernels.few import few_attention
from ..mixer import Context, HeadMixer, MixerSpec, Padding
from .streams import joined, streams


class StarTransformer(HeadMixer):
    """The relay reads all tokens; a token reads itself, its two neighbours, its first layer's input, and the relay.

    Guo et al. 2019, arXiv 1902.09113. x (B, N, E) -> (B, N, E). O(N E) time and memory beside projections. The first
    and the last token are neighbours: a ring, closed before the padding. The relay is a row before the tokens and
    begins as their mean; its attention has projections of its own, as in the authors' code. A CLS row is one more
    relay, which tokens read too.
    Deviates: it is the mixer of a common block, without its own ReLU and norm and with a feed-forward network; the
    relay reads before the tokens do and not after, half a layer's shift, so that what it reads last is not lost where
    tokens alone are read out; tokens read its sum with what it read.
    """

    spec = MixerSpec(family="sparse", paper="Star-Transformer", arxiv="1902.09113", carries=("star",))

    def __init__(self, width: int, heads: int, **common: Any) -> None:
        super().__init__(width, heads, **common)
        self.relay_query = linear(width, heads * self.head_dim)
        self.relay_key = linear(width, self.kv_heads * self.head_dim)
        self.relay_value = linear(width, self.kv_heads * self.head_dim)
        self.relay_output = linear(heads * self.head_dim, width)

    def prefix_rows(self, x: Tensor, context: Context) -> Tensor:
        """The relay (B, 1, E): the mean of the tokens."""
        if context.padding is None:
            return x.mean(1, keepdim=True)
        return context.padding.zero(x).sum(1, keepdim=True) / context.padding.lengths.clamp(min=1)[:, None, None]

    def forward(self, x: Tensor, context: Context) -> tuple[Tensor, Context]:
        """The relay reads, then the tokens."""
        relays, tokens, padding = streams(self, x, context)
        inputs = context.carry.get("star", tokens)
        read = self._relays(relays, tokens, padding)
        y = self._ring(tokens, inputs, relays + read, padding)
        if "star" not in context.carry and self.depth > 1:
            context = context.hand_on("star", tokens)
        return joined(read, y, context), context

    def _relays(self, relays: Tensor, tokens: Tensor, padding: Padding | None) -> Tensor:
        """What the relays read of themselves and all tokens, (B, R, E)."""
        rows = torch.cat((relays, tokens), 1)
        q, k, v = (
            self.split(part(of))
            for part, of in ((self.relay_query, relays), (self.relay_key, rows), (self.relay_value, rows))
        )
        visible = None
        if padding is not None:
            visible = Padding.from_lengths(padding.lengths + relays.shape[1], rows.shape[1]).key_mask()
        o = few_attention(q, k, v, visible=visible, dropout=self.drop_rate)
        y: Tensor = self.relay_output(o.transpose(1, 2).flatten(2))
        return y

    def _ring(self, tokens: Tensor, inputs: Tensor, relays: Tensor, padding: Padding | None) -> Tensor:
        """What each token reads of its few keys (B, N, E); heads stay within tokens, so that nothing is reordered."""
        groups, own = self.kv_heads, self.query(tokens)
        q = own.unflatten(-1, (groups, -1, self.head_dim))
        seen = []
        for part in (self.key, self.value):
            ring = part(tokens)
            first = ring if inputs is tokens else part(inputs)
            keys = (*neighbours(ring, padding), ring, first, *part(relays).split(1, 1))
            seen.append([each.unflatten(-1, (groups, 1, self.head_dim)) for each in keys])
        scores = torch.stack([(q * key).sum(-1) for key in seen[0]], -1) * self.head_dim**-0.5
        weights = dropout(scores.softmax(-1), self.drop_rate).to(q.dtype).unsqueeze(-2).unbind(-1)
        o = sum(weight * value for weight, value in zip(weights, seen[1], strict=True))
        y: Tensor = self.output(o.reshape(own.shape))
        return y


def neighbours(x: Tensor, padding: Padding | None) -> tuple[Tensor, Tensor]:
    """The row before and the row after each row of x (B, N, C), on a ring of the real ones."""
    after = torch.cat((x[:, 1:], x[:, :1]), 1)
    if padding is None:
        return torch.cat((x[:, -1:], x[:, :-1]), 1), after
    ends = (padding.lengths - 1).clamp(min=0)[:, None]
    last = x.gather(1, ends[..., None].expand(-1, -1, x.shape[-1]))
    at_end = torch.arange(x.shape[1], device=x.device) == ends
    return torch.cat((last, x[:, :-1]), 1), torch.where(at_end[..., None], x[:, :1], after)
