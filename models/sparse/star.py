"""Star-Transformer: tokens attend to their neighbours in a ring and to a relay, which attends to all tokens."""

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
    """Attention of a relay to all tokens, and of each token to itself, both neighbours, its first input and the relay.

    Guo et al. 2019, arXiv 1902.09113. x (B, N, E) -> (B, N, E). O(N E) time and memory in addition to projections. The
    first and the last token of a sequence, without its padding, are neighbours, which closes a ring. The first input of
    a token is its input to the first layer. The relay is a row before the tokens, initialised to their mean; its
    attention has separate projections, as in the authors' code. A CLS row is an additional relay, to which tokens
    attend as well.

    Deviations from the paper: this is the mixer of a standard block, without a ReLU and a norm of the layer and with a
    feed-forward network. In each layer the relay is updated before the tokens instead of after them, so that its last
    update is not lost if only the outputs of tokens are used; tokens attend to the sum of the relay and its update.
    """

    spec = MixerSpec(
        family="sparse",
        paper="Star-Transformer",
        arxiv="1902.09113",
        code="fastnlp/fastNLP@e03d2dd:fastNLP/modules/torch/encoder/star_transformer.py",
        carries=("star",),
    )
    separates_cls = True

    def __init__(self, width: int, heads: int, **common: Any) -> None:
        super().__init__(width, heads, **common)
        self.relay_query = linear(width, heads * self.head_dim)
        self.relay_key = linear(width, self.kv_heads * self.head_dim)
        self.relay_value = linear(width, self.kv_heads * self.head_dim)
        self.relay_output = linear(heads * self.head_dim, width)

    def restricts_from(self) -> int:
        """Return 4, the smallest ring in which a token has no edge to another one."""
        return 4

    def prefix_rows(self, x: Tensor, context: Context) -> Tensor:
        """Return the relay (B, 1, E), the mean of the tokens."""
        if context.padding is None:
            return x.mean(1, keepdim=True)
        return context.padding.zero(x).sum(1, keepdim=True) / context.padding.lengths.clamp(min=1)[:, None, None]

    def forward(self, x: Tensor, context: Context) -> tuple[Tensor, Context]:
        """Update the relays, then the tokens; the first layer adds its input to the carry."""
        relays, tokens, padding = streams(self, x, context)
        inputs = context.carry.get("star", tokens)
        update = self._relays(relays, tokens, padding)
        y = self._ring(tokens, inputs, relays + update, padding)
        if "star" not in context.carry and self.depth > 1:
            context = context.with_carry("star", tokens)
        return joined(update, y, context), context

    def _relays(self, relays: Tensor, tokens: Tensor, padding: Padding | None) -> Tensor:
        """Return the updates (B, R, E) of the relays, which attend to themselves and to all tokens."""
        rows = torch.cat((relays, tokens), 1)
        q, k, v = (
            self.split(projection(stream))
            for projection, stream in ((self.relay_query, relays), (self.relay_key, rows), (self.relay_value, rows))
        )
        visible = None
        if padding is not None:
            visible = Padding.from_lengths(padding.lengths + relays.shape[1], rows.shape[1]).key_mask()
        o = few_attention(q, k, v, visible=visible, dropout=self.drop_rate)
        y: Tensor = self.relay_output(o.transpose(1, 2).flatten(2))
        return y

    def _ring(self, tokens: Tensor, inputs: Tensor, relays: Tensor, padding: Padding | None) -> Tensor:
        """Return the outputs (B, N, E) of the tokens.

        The head axis stays after the token axis, so that no tensor is transposed.
        """
        groups, projected = self.kv_heads, self.query(tokens)
        q = projected.unflatten(-1, (groups, -1, self.head_dim))
        kv = []
        for projection in (self.key, self.value):
            ring = projection(tokens)
            first = ring if inputs is tokens else projection(inputs)
            sources = (*neighbours(ring, padding), ring, first, *projection(relays).split(1, 1))
            kv.append([source.unflatten(-1, (groups, 1, self.head_dim)) for source in sources])
        scores = torch.stack([(q * key).sum(-1) for key in kv[0]], -1) * self.head_dim**-0.5
        weights = dropout(scores.softmax(-1), self.drop_rate).to(q.dtype).unsqueeze(-2).unbind(-1)
        o = sum(weight * value for weight, value in zip(weights, kv[1], strict=True))
        y: Tensor = self.output(o.reshape(projected.shape))
        return y


def neighbours(x: Tensor, padding: Padding | None) -> tuple[Tensor, Tensor]:
    """Return the token before and the token after each token of x (B, N, C), on a ring without padding."""
    after = torch.cat((x[:, 1:], x[:, :1]), 1)
    if padding is None:
        return torch.cat((x[:, -1:], x[:, :-1]), 1), after
    ends = (padding.lengths - 1).clamp(min=0)[:, None]
    last = x.gather(1, ends[..., None].expand(-1, -1, x.shape[-1]))
    at_end = torch.arange(x.shape[1], device=x.device) == ends
    return torch.cat((last, x[:, :-1]), 1), torch.where(at_end[..., None], x[:, :1], after)
