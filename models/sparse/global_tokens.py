"""Global-token attention: a few tokens attend to all tokens and are visible to all of them."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn

from lra_bench.contracts import UserError

from ..embedding import DEVIATION
from ..kernels.dropout import dropout
from ..kernels.softmax import additive_mask, grouped, softmax_attention
from ..mixer import Context, HeadMixer, MixerSpec


class GlobalTokens(HeadMixer):
    """Attention of global tokens to everything, and of the other tokens to the global ones and to themselves.

    The global pattern of Lin et al. 2021, arXiv 2106.04554, with external nodes, as in BigBird-ETC (Zaheer et al. 2020,
    arXiv 2007.14062), or internal ones. x (B, N, E) -> (B, N, E). O(N g D) time and O(N g) memory for g global tokens.
    The first ``global_tokens`` rows, including prefix rows, are global. With ``learned``, they are additional learned
    rows before the tokens, which pass through all layers; the mixer is then permutation equivariant. Otherwise they are
    the first tokens of the sequence. Raises ``UserError`` if ``global_tokens`` is below 1.
    """

    spec = MixerSpec(
        family="sparse",
        paper="A Survey of Transformers",
        arxiv="2106.04554",
        positions=("embed", "rotate"),
        full_config={"global_tokens": 1_000_000, "learned": False},
    )
    not_decayed = ("rows",)

    def __init__(self, width: int, heads: int, *, global_tokens: int = 64, learned: bool = True, **common: Any) -> None:
        super().__init__(width, heads, **common)
        if global_tokens < 1:
            raise UserError(f"model.mixer.global_tokens={global_tokens}: must be at least 1")
        self.global_tokens = global_tokens
        self.learned = learned
        own = learned and self.layer == 0
        self.rows = nn.Parameter(torch.randn(global_tokens, width) * DEVIATION) if own else None

    def restricts_from(self) -> int:
        """Return 2 if global rows are learned, otherwise g + 2: the smallest length with two other tokens."""
        return 2 if self.learned else self.global_tokens + 2

    def prefix_rows(self, x: Tensor, context: Context) -> Tensor | None:
        """Return the learned rows (B, g, E), or None if there are none."""
        return None if self.rows is None else self.rows.to(x.dtype).expand(x.shape[0], -1, -1)

    def attend(self, q: Tensor, k: Tensor, v: Tensor, context: Context) -> Tensor:
        """Compute attention of global rows to all rows, and of the others to global rows and themselves."""
        count = max(self.global_tokens, context.prefix)
        first = softmax_attention(q[:, :, :count], k, v, padding=context.padding, dropout=self.drop_rate)
        return first if count >= q.shape[2] else torch.cat((first, self._others(q, k, v, count, context)), 2)

    def _others(self, q: Tensor, k: Tensor, v: Tensor, count: int, context: Context) -> Tensor:
        """Return the outputs (B, H, N − count, D) of the other rows: one softmax over the first ones and themselves."""
        q = q[:, :, count:] * self.head_dim**-0.5
        global_keys, global_values = k[:, :, :count], v[:, :, :count]
        keys, values = (x[:, :, count:].repeat_interleave(self.heads // self.kv_heads, 1) for x in (k, v))
        scores = grouped(q, global_keys.mT)
        if context.padding is not None:
            scores = scores + additive_mask(context.padding.key_mask()[..., :count], scores.dtype)
        self_scores = (q * keys).sum(-1, keepdim=True)
        weights = dropout(torch.cat((scores, self_scores), -1).softmax(-1), self.drop_rate).to(v.dtype)
        return grouped(weights[..., :count], global_values) + weights[..., count:] * values
