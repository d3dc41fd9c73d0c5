"""ETC: tokens attend to a window and to global tokens, global tokens to everything, with relative position labels."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn

from lra_bench.contracts import UserError

from ..kernels.block import AdditionalKeys, Bias, block_attention
from ..kernels.few import few_attention
from ..kernels.patterns import SMALLEST_BLOCK, in_window
from ..kernels.segments import segment_mean, segment_of
from ..kernels.softmax import grouped
from ..kernels.sorting import take
from ..mixer import Context, HeadMixer, MixerSpec, Padding
from .streams import streams

LINKS = 4
"""Number of labels for pairs of a token and a global token, before the labels of distances.

A token to the global token of its segment (0) or another (1), a global token to a token of its segment (2) or another
(3).
"""


class ETC(HeadMixer):
    """Attention of tokens to a window and to all global tokens in one softmax, and of global tokens to everything.

    Ainslie et al. 2020, arXiv 2004.08483. x (B, N, E) -> (B, N, E). O(N (w + g) D) time; O(N (w + g)) memory, since
    scores are stored. The sequence is cut into g segments, whose lengths differ by at most one. Each has a global
    token: a row before the tokens, with the same projections and feed-forward network. A label r adds
    (q · e_r + b_r) / √D to a score, with e_r and b_r learned for each head. Labels are clipped offsets, between tokens
    and between global tokens, and whether a token belongs to the segment of a global token, separately for both
    directions. A CLS row is a global token without a segment.

    Deviations from the paper: segments are not sentences, which the tasks do not have; a global token is initialised to
    the mean of its segment plus a learned vector instead of a separate embedding; the loss on masked segments, which is
    for pre-training, is omitted.

    Args:
        width: Model width E.
        heads: Number of heads H.
        window: Number of tokens w on each side that a token attends to.
        global_tokens: Number g of global tokens; 0 for none.
        clip: Largest offset with its own label.
        common: Options of ``HeadMixer``.

    Raises:
        UserError: If an option is negative.
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
        """Return the global tokens (B, S, E) of x (B, N, E), one for each segment; None if there are none."""
        if not self.global_tokens:
            return None
        means = segment_mean(x[:, None], self.global_tokens, context.padding)[0][:, 0].to(x.dtype)
        return means if self.start is None else means + self.start

    def forward(self, x: Tensor, context: Context) -> tuple[Tensor, Context]:
        """Compute attention of global rows and of tokens, with shared projections."""
        rows, tokens, padding = streams(self, x, context)
        count, length, device = rows.shape[1], tokens.shape[1], x.device
        heads = self.project(x if context.prefix else torch.cat((rows, tokens), 1))
        # (q · e_r + b_r) / √D of every label; each pair gathers that of its label.
        by_label = (heads[0] @ self.labels.mT + self.label_bias[:, None]) * self.head_dim**-0.5
        segment, own = segment_of(length, self.global_tokens, padding, device)
        slots, places = min(self.global_tokens, length), torch.arange(count, device=device)
        belongs = (segment[..., None] == places.where(places < slots, -1))[:, None]
        real = segment.new_ones(1, length, dtype=torch.bool) if padding is None else padding.valid
        mask = torch.cat(((places < own) | (places >= slots), real), -1)[:, None, None]
        o = self._token_outputs(*heads, by_label, belongs, mask, padding)
        if count:
            o = torch.cat((self._row_outputs(*heads, by_label, belongs, mask), o), 2)
        y = self.merge(o)
        return (y if context.prefix else y[:, count:]), context

    def _token_outputs(
        self, q: Tensor, k: Tensor, v: Tensor, by_label: Tensor, belongs: Tensor, mask: Tensor, padding: Padding | None
    ) -> Tensor:
        """Return the outputs (B, H, N, D) of tokens.

        Args:
            q: Queries (B, H, P + N, D) of P global rows and N tokens.
            k: Keys (B, G, P + N, D).
            v: Values (B, G, P + N, D).
            by_label: Score of each label (B, H, P + N, labels).
            belongs: Mask (B, 1, N, P): whether a token is in the segment of a global row.
            mask: Mask (B, 1, 1, P + N) of rows that are neither padding nor missing global tokens.
            padding: Padding of the tokens.
        """
        (length, count), global_rows = belongs.shape[-2:], None
        rows = k[:, :, :count], v[:, :, :count]
        q, k, v, by_label = (x[:, :, count:] for x in (q, k, v, by_label))
        if count:
            links = torch.where(belongs, by_label[..., 0:1], by_label[..., 1:2])
            scores = grouped(q * self.head_dim**-0.5, rows[0].mT) + links
            masked = ~mask[..., :count]
            global_rows = AdditionalKeys(
                scores.masked_fill(masked, -torch.inf), lambda weights: grouped(weights, rows[1])
            )
        block = min(max(self.window, SMALLEST_BLOCK), length)
        return block_attention(
            q,
            k,
            v,
            block=block,
            neighbours=(0, 0) if block == length else (1, 1),
            keep=in_window(self.window, causal=False),
            bias=self._distances(by_label),
            additional=global_rows,
            padding=padding,
            dropout=self.drop_rate,
        )

    def _row_outputs(self, q: Tensor, k: Tensor, v: Tensor, by_label: Tensor, belongs: Tensor, mask: Tensor) -> Tensor:
        """Return the outputs (B, H, P, D) of global rows, which attend to each other and to all tokens.

        Arguments are those of ``_token_outputs``.
        """
        count = belongs.shape[-1]
        by_label, rows = by_label[:, :, :count], torch.arange(count, device=q.device)[None]
        links = torch.where(belongs.mT, by_label[..., 2:3], by_label[..., 3:4])
        bias = torch.cat((self._distances(by_label)(rows, rows)[:, :, 0], links), -1)
        return few_attention(q[:, :, :count], k, v, visible=mask, bias=bias, dropout=self.drop_rate)

    def _distances(self, by_label: Tensor) -> Bias:
        """Return the bias of offsets between rows of one kind, from their scores ``by_label`` (B, H, N, labels)."""

        def added(queries: Tensor, keys: Tensor) -> Tensor:
            offset = (keys[:, None] - queries[..., None]).clamp(-self.clip, self.clip)
            gathered = take(by_label, queries.expand(*by_label.shape[:2], -1, -1))
            return gathered.gather(-1, (offset + LINKS + self.clip).expand(*by_label.shape[:2], -1, -1, -1))

        return added
