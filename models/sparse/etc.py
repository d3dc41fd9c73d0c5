"""ETC (Extended Transformer Construction): window attention with global tokens and relative position labels."""

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
"""Number of labels for pairs of a token and a global token. The labels of offsets follow them.

Label 0: query is a token, key is the global token of its segment. 1: query is a token, key is another global token.
2: query is a global token, key is a token of its segment. 3: query is a global token, key is another token.
"""


class ETC(HeadMixer):
    """Attention of tokens to a window and to all global tokens in one softmax, and of global tokens to everything.

    Ainslie et al. 2020, arXiv 2004.08483. x (B, N, E) -> (B, N, E). O(N (w + g) D) time; O(N (w + g)) memory, since
    scores are stored. The sequence is cut into min(g, N) segments, whose lengths differ by at most one. Each segment
    has a global token, which is a prefix position with the same projections and feed-forward network as the tokens. A
    CLS position is a global token without a segment.

    Each pair of a query and a key has a label r, which adds (q · e_r + b_r) / √D to the score, with e_r and b_r learned
    for each head. Between two tokens, or two global tokens, the label is the offset from query to key, clipped to the
    range from −``clip`` to ``clip``. Between a token and a global token it is one of the four labels of ``LINKS``.

    Deviations from the paper: segments are not sentences, because the tasks have none; the input of a global token is
    the mean of its segment plus a learned vector, instead of an embedding that is independent of the segment; the
    pre-training loss on masked segments is omitted.

    Args:
        width: Model width E.
        heads: Number of heads H.
        window: Number of tokens w on each side of a token to which it attends.
        global_tokens: Largest number g of global tokens; 0 for none. A sequence of fewer than g tokens has one for each
            token.
        clip: Largest offset in either direction that has a separate label; larger offsets share it.
        common: Options of ``HeadMixer``.

    Raises:
        UserError: If an option is negative.
    """

    spec = MixerSpec(
        family="sparse",
        paper="ETC: Encoding Long and Structured Inputs in Transformers",
        arxiv="2004.08483",
        code="google-research/google-research@0c1bbe5:etcmodel/layers/attention.py",
        # With clip 0 all tokens have the same label, which adds the same number to all scores of a query.
        full_config={"window": 1_000_000, "global_tokens": 0, "clip": 0},
    )
    separates_cls = True
    not_decayed = ("labels", "label_bias")

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
        # The backbone calls ``prefix_rows`` in the first layer only.
        has_start = global_tokens > 0 and self.layer == 0
        self.start = nn.Parameter(torch.randn(width) * 0.02) if has_start else None

    def restricts_from(self) -> int:
        """Return w + 2, the smallest length at which two tokens see each other only through global tokens."""
        return self.window + 2

    def prefix_rows(self, x: Tensor, context: Context) -> Tensor | None:
        """Return the inputs (B, S, E) of the S = min(g, N) global tokens of x (B, N, E); None if g is 0."""
        if not self.global_tokens:
            return None
        means = segment_mean(x[:, None], self.global_tokens, context.padding)[0][:, 0].to(x.dtype)
        return means if self.start is None else means + self.start

    def forward(self, x: Tensor, context: Context) -> tuple[Tensor, Context]:
        """Compute attention of global tokens and of tokens, with shared projections."""
        # Global tokens here include the CLS position, which follows those of segments.
        global_tokens, tokens, padding = streams(self, x, context)
        count, length, device = global_tokens.shape[1], tokens.shape[1], x.device
        heads = self.project(x if context.prefix else torch.cat((global_tokens, tokens), 1))
        # (q · e_r + b_r) / √D for all labels r of each query, from which each pair takes that of its label.
        by_label = (heads[0] @ self.labels.mT + self.label_bias[:, None]) * self.head_dim**-0.5
        # A padded sequence may have fewer segments than the batch; its other global tokens are masked.
        segment, used_segments = segment_of(length, self.global_tokens, padding, device)
        segments, index = min(self.global_tokens, length), torch.arange(count, device=device)
        belongs = (segment[..., None] == index.where(index < segments, -1))[:, None]
        real = segment.new_ones(1, length, dtype=torch.bool) if padding is None else padding.valid
        mask = torch.cat(((index < used_segments) | (index >= segments), real), -1)[:, None, None]
        o = self._token_outputs(*heads, by_label, belongs, mask, padding)
        if count:
            o = torch.cat((self._global_outputs(*heads, by_label, belongs, mask), o), 2)
        # ``merge`` instead of ``finish``, so head losses are not supported.
        y = self.merge(o)
        return (y if context.prefix else y[:, count:]), context

    def _token_outputs(
        self, q: Tensor, k: Tensor, v: Tensor, by_label: Tensor, belongs: Tensor, mask: Tensor, padding: Padding | None
    ) -> Tensor:
        """Return the outputs (B, H, N, D) of tokens.

        Args:
            q: Queries (B, H, P + N, D) of P global tokens, followed by N tokens.
            k: Keys (B, G, P + N, D).
            v: Values (B, G, P + N, D).
            by_label: Term that each label adds to a score of the query, (B, H, P + N, labels).
            belongs: Mask (B or 1, 1, N, P), true if a token is in the segment of a global token.
            mask: Mask (B or 1, 1, 1, P + N) of visible keys, false for padding and for global tokens whose segment does
                not exist.
            padding: Padding of the tokens.
        """
        (length, count), global_keys = belongs.shape[-2:], None
        k_global, v_global = k[:, :, :count], v[:, :, :count]
        q, k, v, by_label = (x[:, :, count:] for x in (q, k, v, by_label))
        if count:
            links = torch.where(belongs, by_label[..., 0:1], by_label[..., 1:2])
            scores = grouped(q * self.head_dim**-0.5, k_global.mT) + links
            masked = ~mask[..., :count]
            global_keys = AdditionalKeys(
                scores.masked_fill(masked, -torch.inf), lambda weights: grouped(weights, v_global)
            )
        block = min(max(self.window, SMALLEST_BLOCK), length)
        return block_attention(
            q,
            k,
            v,
            block=block,
            neighbours=(0, 0) if block == length else (1, 1),
            keep=in_window(self.window, causal=False),
            bias=self._offset_bias(by_label),
            additional=global_keys,
            padding=padding,
            dropout=self.drop_rate,
        )

    def _global_outputs(
        self, q: Tensor, k: Tensor, v: Tensor, by_label: Tensor, belongs: Tensor, mask: Tensor
    ) -> Tensor:
        """Return the outputs (B, H, P, D) of global tokens, which attend to each other and to all tokens.

        Arguments are those of ``_token_outputs``.
        """
        count = belongs.shape[-1]
        by_label, index = by_label[:, :, :count], torch.arange(count, device=q.device)[None]
        links = torch.where(belongs.mT, by_label[..., 2:3], by_label[..., 3:4])
        bias = torch.cat((self._offset_bias(by_label)(index, index)[:, :, 0], links), -1)
        return few_attention(q[:, :, :count], k, v, visible=mask, bias=bias, dropout=self.drop_rate)

    def _offset_bias(self, by_label: Tensor) -> Bias:
        """Return a function that computes the bias for offsets among tokens, or among global tokens.

        ``by_label`` (B, H, N, labels) contains the terms of the N queries. The arguments of the function are indices of
        queries (X, r) and of keys (X, K) in X blocks; it returns the bias (B, H, X, r, K), as ``block_attention``
        expects.
        """

        def bias(queries: Tensor, keys: Tensor) -> Tensor:
            offset = (keys[:, None] - queries[..., None]).clamp(-self.clip, self.clip)
            gathered = take(by_label, queries.expand(*by_label.shape[:2], -1, -1))
            return gathered.gather(-1, (offset + LINKS + self.clip).expand(*by_label.shape[:2], -1, -1, -1))

        return bias
