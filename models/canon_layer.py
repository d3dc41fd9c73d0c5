"""Canon layer: a short convolution with a residual connection in front of a mixer."""

from __future__ import annotations

from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from lra_bench.contracts import UserError

from .kernels.short_convolution import short_convolution
from .mixer import Context, Mixer, Padding
from .recurrent.recurrence import last_rows


class CanonLayer(nn.Module):
    """Depthwise convolution with a residual connection: x + kernel ∗ x, (B, N, E) to (B, N, E).

    Allen-Zhu 2025, arXiv 2512.17351: the position A of the paper, between the norm in front of a mixer and the mixer,
    without bias and activation, which is the form that the paper recommends. O(N E K) time for a kernel of K tokens. A
    causal layer covers a token and the K − 1 tokens before it, as in the paper, otherwise (K − 1) / 2 tokens on either
    side. Padding counts as zero, and so do the places before the first token. Prefix positions, such as CLS, are left
    as they are and not read. Weights are initialised as in ``torch.nn.Conv1d``: uniform between −K^(−1/2) and
    K^(−1/2). Raises ``UserError`` if K is below 2, or even and the layer not causal.

    Args:
        width: Number of features E.
        size: Length K of the kernel in tokens.
        causal: Whether later tokens are not read.
    """

    def __init__(self, width: int, size: int, *, causal: bool) -> None:
        super().__init__()
        option = f"backbone.short_convolution={size}"
        if size < 2:
            raise UserError(f"{option}: must be at least 2; null means no convolution")
        if not causal and size % 2 == 0:
            raise UserError(
                f"{option}: must be odd unless the model is causal, because the kernel is centred; set {size - 1} or "
                f"{size + 1}"
            )
        bound = size**-0.5
        self.causal = causal
        self.weight = nn.Parameter(torch.empty(size, width).uniform_(-bound, bound))

    def forward(self, x: Tensor, context: Context, before: Tensor | None = None) -> tuple[Tensor, Tensor | None]:
        """Apply the layer to x (B, P + N, E) with P prefix positions.

        ``before`` (B, K − 1, E) are the tokens before the first one, None for zeros. Returns the result, and the last
        K − 1 tokens, which are ``before`` of the next call, if the context keeps memory, otherwise None.
        """
        reach, prefix = self.weight.shape[0] - 1, context.prefix
        tokens, padding = x[:, prefix:], None
        if context.padding is not None:
            padding = Padding.from_lengths(context.padding.lengths - prefix, tokens.shape[1])
            tokens = padding.zero(tokens)
        last = None
        if self.causal:
            before = x.new_zeros(x.shape[0], reach, x.shape[2]) if before is None else before.to(x.dtype)
            inputs = torch.cat((before, tokens), 1)
            last = last_rows(tokens, before, padding) if context.keeps_memory else None
        else:
            inputs = F.pad(tokens, (0, 0, reach // 2, reach // 2))
        mixed = short_convolution(inputs, self.weight.to(x.dtype))
        return x + (F.pad(mixed, (0, 0, prefix, 0)) if prefix else mixed), last

    def then(self, mixer: nn.Module, x: Tensor, context: Context) -> tuple[Tensor, Context]:
        """Apply the layer and then ``mixer``; the memory of the layer is that of both."""
        memory: dict[str, Any] = context.memory or {}
        x, last = self(x, context, memory.get("convolution"))
        y, context = mixer(x, context.replace(memory=memory.get("mixer")))
        after = {"convolution": last, "mixer": context.memory} if context.keeps_memory else None
        return y, context.replace(memory=after)


class Preceded(nn.Module):
    """A mixer that replaces the whole block, with a Canon layer in front of the block."""

    def __init__(self, mixer: Mixer, convolution: CanonLayer) -> None:
        super().__init__()
        self.mixer, self.convolution = mixer, convolution

    def forward(self, x: Tensor, context: Context) -> tuple[Tensor, Context]:
        """Apply the layer and the block to x (B, N, E)."""
        return self.convolution.then(self.mixer, x, context)
