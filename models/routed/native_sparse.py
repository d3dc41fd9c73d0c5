"""Native sparse attention: summaries of blocks, selected blocks and a sliding window."""

from __future__ import annotations

from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from lra_bench.contracts import UserError

from ..feedforward import linear
from ..kernels.patterns import within_window
from ..kernels.selected import Sizes, summarised_and_selected
from ..mixer import Context, HeadMixer, MixerSpec


class NativeSparseAttention(HeadMixer):
    """Gated sum of attention to summaries of blocks, to the tokens of selected blocks, and to a sliding window.

    o_t = Σ_c σ(g_(t,c)) attention(q_t, K_c, V_c) with the same queries and own keys and values for each of the three
    branches c. Yuan et al. 2025, arXiv 2502.11089. x (B, N, E) -> (B, N, E). By its definition O(N D (N / d + n b + w))
    time for strides of d tokens, n selected blocks of b tokens and a window of w; here O(N² D), since the selected
    tokens are computed with a mask (see ``summarised_and_selected``). O(N D) memory.

    A summary of ``summary`` tokens begins at every d-th token: m + W GELU(m), where m is a sum of their keys, or
    values, with weights per place and channel, plus a bias. A token attends to all summaries; if causal, to those that
    end at or before it. Their weights, summed over the heads that share keys, rank the blocks (see
    ``summarised_and_selected``): each token selects n of them, among them always the first, its own and the neighbours
    of its own. Position encodings rotate queries and keys of selected blocks and of the window, not those of summaries.

    In the bidirectional form tokens attend in both directions. Raises ``UserError`` for an invalid size.

    Deviations from the paper: summaries, blocks and window are smaller, for sequences of a few thousand tokens; the
    paper states neither width nor depth of the network that computes summaries; indices of the summaries of a block
    count forwards from its begin, where those of equation 9 count backwards; queries and keys of summaries have no
    rotation, on which the paper is silent; the paper has the causal form only.

    Args:
        width: Number of features E.
        heads: Number of query heads H.
        summary: Number of tokens of a summary.
        stride: Number of tokens d from one summary to the next; divides ``summary`` and ``block``.
        block: Number of tokens b of a block.
        selected: Number of selected blocks n.
        window: Number of tokens w before the token, and after it in the bidirectional form, that the window reaches.
        kv_heads: Number of key and value heads; by default the largest divisor of H that is at most H / 4, or 1.
        **common: Arguments of ``HeadMixer``.
    """

    spec = MixerSpec(
        family="routed",
        paper="Native Sparse Attention: Hardware-Aligned and Natively Trainable Sparse Attention",
        arxiv="2502.11089",
        causal="exact",
        materialises="rows",
        growth=2.0,
        positions=("embed", "rotate"),
    )
    shows_heads = True

    def __init__(
        self,
        width: int,
        heads: int,
        *,
        summary: int = 16,
        stride: int = 8,
        block: int = 32,
        selected: int = 8,
        window: int = 128,
        kv_heads: int | None = None,
        **common: Any,
    ) -> None:
        if kv_heads is None:
            kv_heads = next(count for count in range(max(1, heads // 4), 0, -1) if heads % count == 0)
        super().__init__(width, heads, kv_heads=kv_heads, **common)
        for name, value in {"summary": summary, "stride": stride, "block": block, "selected": selected}.items():
            if value < 1:
                raise UserError(f"model.mixer.{name}={value}: must be at least 1")
        if window < 0:
            raise UserError(f"model.mixer.window={window}: must not be negative")
        for name, value in {"summary": summary, "block": block}.items():
            if value % stride:
                raise UserError(f"model.mixer.stride={stride}: does not divide model.mixer.{name}={value}")
        self.sizes, self.window = Sizes(summary, stride, block, selected), window
        shared = self.kv_heads * self.head_dim
        # ``key`` and ``value`` are those of selected blocks.
        self.window_key, self.window_value = linear(width, shared), linear(width, shared)
        self.summary_key, self.summary_value = linear(width, shared), linear(width, shared)
        self.key_summaries, self.value_summaries = (Summaries(self.head_dim, self.sizes) for _ in range(2))
        self.gate = linear(width, 3 * heads)

    def restricts_from(self) -> int:
        """Return the smallest length at which the window does not reach all tokens, or not all blocks are selected."""
        return min(self.window + 2, self.sizes.selected * self.sizes.block + 1)

    def forward(self, x: Tensor, context: Context) -> tuple[Tensor, Context]:
        """Compute the three branches and their gated sum, and merge the heads."""
        padding = context.padding
        if padding is not None:
            x = padding.zero(x)
        q, k, v = self.project(x)
        summary_keys = self.key_summaries(self.split(self.summary_key(x)))
        summary_values = self.value_summaries(self.split(self.summary_value(x)))
        rotated, k = self.apply_rotation(q, k, context)
        _, window_keys = self.apply_rotation(q, self.split(self.window_key(x)), context)
        options: dict[str, Any] = {"causal": self.causal, "padding": padding, "dropout": self.drop_rate}
        summarised, selected = summarised_and_selected(
            q, summary_keys, summary_values, rotated, k, v, self.sizes, **options
        )
        near = within_window(
            rotated, window_keys, self.split(self.window_value(x)), window=self.window, bias=None, **options
        )
        gates = self.gate(x).sigmoid().unflatten(-1, (3, self.heads, 1)).transpose(1, 3).unbind(2)  # (B, H, N, 1) each
        first, second, third = (gate * o for gate, o in zip(gates, (summarised, selected, near), strict=True))
        o = first + second + third
        return self.finish(o, rotated, k, v, context)


class Summaries(nn.Module):
    """Summaries m + W GELU(m) of blocks of tokens: (B, G, N, D) to (B, G, S, D); m is a weighted sum over the block.

    Weights of the sum are initialised to those of a mean.

    Args:
        width: Number of features D.
        sizes: Sizes of the blocks and their distance.
    """

    def __init__(self, width: int, sizes: Sizes) -> None:
        super().__init__()
        self.sizes = sizes
        self.weight = nn.Parameter(torch.full((sizes.summary, width), 1 / sizes.summary))
        self.bias = nn.Parameter(torch.zeros(width))
        self.change = linear(width, width)

    def forward(self, x: Tensor) -> Tensor:
        """Summarise the blocks of x (B, G, N, D)."""
        sizes, count = self.sizes, self.sizes.summaries(x.shape[2])
        m = self.bias.to(x.dtype).expand(*x.shape[:2], count, -1)
        if count:
            # A sum of shifted copies: windows would take ``summary`` / ``stride`` times the memory.
            for tap, weight in enumerate(self.weight.to(x.dtype)):
                m = m + x[:, :, tap : tap + (count - 1) * sizes.stride + 1 : sizes.stride] * weight
        y: Tensor = m + self.change(F.gelu(m))
        return y
