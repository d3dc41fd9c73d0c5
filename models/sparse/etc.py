"""Tokens see a window and every global token, global tokens see everything, all under relative labels."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn

from lra_bench.contracts import UserError

from ..kernels.block import Beside, Bias, block_attention
from ..kernels.few import few_attention
from ..kernels.patterns import SMALLEST_BLOCK, in_window
from ..kernels.segments import segment_mean, segment_of
from ..kernels.softmax import grouped
from ..kernels.sorting import take
from ..mixer import Context, HeadMixer, MixerSpec, Padding
from .streams import streams

LINKS = 4  # the first labels: a token reads its segment's global token, or another; a global token does alike


class ETC(HeadMixer):
    """A token sees ``window`` tokens on each side and all global tokens in one softmax; global tokens see all rows.

    Ainslie et al. 2020, arXiv 2004.08483. x (B, N, E) -> (B, N, E). O(N (w + g) D) time; scores are held, O(N (w + g)).
    The row is cut into ``global_tokens`` segments, as equal as they can be; each has a global token, a row before the
    tokens with the same projections and feed-forward network. A label r adds (q · e_r + b_r) / √D to scores, with a
    vector and a number of each head: distances up to ``clip`` on either side, within either kind of rows, and whether
    a token belongs to a global token's segment, in both directions. A CLS row is a global token without a segment.
    Deviates: segments are no sentences, of which the tasks know none; a global token begins as the mean of its segment
    plus a learned vector, not as an embedding of its own; the loss on hidden segments belongs to pre-training.
    """

    spec = MixerSpec(
        family="sparse",
        paper="ETC: Encoding Long and Structured Inputs in Transformers",
        arxiv="2004.08483",
        full_config={"window": 1_000_000, "global_tokens": 0, "clip": 0},
    )

    def __init__(
        self, width: int, heads: int, *, window: int = 48, global_tokens: int = 32, clip: int = 12, **common: Any
    ) -> None:
        super().__init__(width, heads, **common)
        for name, value in (("window", window), ("global_tokens", global_tokens), ("clip", clip)):
            if value < 0:
                raise UserError(f"model.mixer.{name}={value}: must not be negative")
        self.window, self.global_tokens, self.clip = window, global_tokens, clip
        self.labels = nn.Parameter(torch.empty(heads, LINKS + 2 * clip + 1, self.head_dim))
        self.label_bias = nn.Parameter(torch.zeros(heads, LINKS + 2 * clip + 1))
        nn.init.trunc_normal_(self.labels, std=0.5, a=-1, b=1)
        first = global_tokens > 0 and self.layer == 0
        self.start = nn.Parameter(torch.randn(width) * 0.02) if first else None

    def prefix_rows(self, x: Tensor, context: Context) -> Tensor | None:
        """The global tokens (B, S, E) of x, one for each segment; None where none are asked for."""
        if not self.global_tokens:
            return None
        means = segment_mean(x[:, None], self.global_tokens, context.padding)[0][:, 0].to(x.dtype)
        return means if self.start is None else means + self.start

    def forward(self, x: Tensor, context: Context) -> tuple[Tensor, Context]:
        """Attention of global rows and of tokens, with shared projections."""
        rows, tokens, padding = streams(self, x, context)
        count, length, device = rows.shape[1], tokens.shape[1], x.device
        heads = self.project(x if context.prefix else torch.cat((rows, tokens), 1))
        # (q · e_r + b_r) / √D of every label, from which those who read take theirs.
        told = (heads[0] @ self.labels.mT + self.label_bias[:, None]) * self.head_dim**-0.5
        segment, own = segment_of(length, self.global_tokens, padding, device)
        slots, places = min(self.global_tokens, length), torch.arange(count, device=device)
        belongs = (segment[..., None] == places.where(places < slots, -1))[:, None]
        real = segment.new_ones(1, length, dtype=torch.bool) if padding is None else padding.valid
        seen = torch.cat(((places < own) | (places >= slots), real), -1)[:, None, None]
        o = self._tokens(*heads, told, belongs, seen, padding)
        if count:
            o = torch.cat((self._globals(*heads, told, belongs, seen), o), 2)
        y = self.merge(o)
        return (y if context.prefix else y[:, count:]), context

    def _tokens(
        self, q: Tensor, k: Tensor, v: Tensor, told: Tensor, belongs: Tensor, seen: Tensor, padding: Padding | None
    ) -> Tensor:
        """What tokens read of their windows and, where each ``belongs`` to one (B, 1, N, P), of global rows."""
        (length, count), beside = belongs.shape[-2:], None
        rows = k[:, :, :count], v[:, :, :count]
        q, k, v, told = (x[:, :, count:] for x in (q, k, v, told))
        if count:
            links = torch.where(belongs, told[..., 0:1], told[..., 1:2])
            scores = grouped(q * self.head_dim**-0.5, rows[0].mT) + links
            hidden = ~seen[..., :count]
            beside = Beside(scores.masked_fill(hidden, -torch.inf), lambda weights: grouped(weights, rows[1]))
        block = min(max(self.window, SMALLEST_BLOCK), length)
        return block_attention(
            q,
            k,
            v,
            block=block,
            neighbours=(0, 0) if block == length else (1, 1),
            keep=in_window(self.window, causal=False),
            bias=self._distances(told),
            beside=beside,
            padding=padding,
            dropout=self.drop_rate,
        )

    def _globals(self, q: Tensor, k: Tensor, v: Tensor, told: Tensor, belongs: Tensor, seen: Tensor) -> Tensor:
        """What global rows read of each other and of all tokens: (B, H, P, D)."""
        count = belongs.shape[-1]
        told, rows = told[:, :, :count], torch.arange(count, device=q.device)[None]
        links = torch.where(belongs.mT, told[..., 2:3], told[..., 3:4])
        bias = torch.cat((self._distances(told)(rows, rows)[:, :, 0], links), -1)
        return few_attention(q[:, :, :count], k, v, visible=seen, bias=bias, dropout=self.drop_rate)

    def _distances(self, told: Tensor) -> Bias:
        """The bias of distances between rows of one kind, whose labels ``told`` (B, H, N, labels)."""

        def added(queries: Tensor, keys: Tensor) -> Tensor:
            place = (keys[:, None] - queries[..., None]).clamp(-self.clip, self.clip)
            each = take(told, queries.expand(*told.shape[:2], -1, -1))
            return each.gather(-1, (place + LINKS + self.clip).expand(*told.shape[:2], -1, -1, -1))

        return added
