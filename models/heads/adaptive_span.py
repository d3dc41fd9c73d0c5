"""Attention in windows whose width is learned, one for each head."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor, nn

from lra_bench.contracts import UserError

from ..kernels.patterns import within_window
from ..mixer import Context, HeadMixer, MixerSpec
from .head_loss import mean_of_tokens

MULTIPLE = 16  # windows are rounded up to it, so that tensors come in few sizes


class SpanAttention(HeadMixer):
    """Weights are multiplied by a ramp that falls from 1 to 0 between distances z and z + R, for learned z.

    Sukhbaatar et al. 2019, arXiv 1905.07799. q (B, H, N, D), k and v (B, G, N, D) -> (B, H, N, D). ``span`` is the
    largest z, ``initial_span`` the first, ``ramp`` is R; while training, ``penalty`` times the mean z joins the loss.
    O(N (z + R) D) time with the largest z of the layer, which every pass waits for; memory O(N D), and a byte of mask
    for each of N (z + R) pairs.
    Deviates: without direction, distances count on both sides; a token sees itself, which the authors' code leaves out,
    so that no token sees nothing; z begins at 32, the authors' at 0; which positions are used is left to the user.
    """

    spec = MixerSpec(
        family="heads",
        paper="Adaptive Attention Span in Transformers",
        arxiv="1905.07799",
        causal="exact",
        positions=("embed", "rotate", "bias"),
        full_config={"ramp": 10**15},
    )
    shows_heads = True

    def __init__(
        self,
        width: int,
        heads: int,
        *,
        span: int = 1024,
        initial_span: int = 32,
        ramp: int = 32,
        penalty: float = 2e-6,
        **common: Any,
    ) -> None:
        super().__init__(width, heads, **common)
        for name, value, least in (("span", span, 1), ("ramp", ramp, 1), ("penalty", penalty, 0)):
            if value < least:
                raise UserError(f"model.mixer.{name}={value}: must be at least {least}")
        if not 0 <= initial_span <= span:
            raise UserError(f"model.mixer.initial_span={initial_span}: must lie between 0 and model.mixer.span={span}")
        self.span, self.ramp, self.penalty = span, ramp, penalty
        self.begin(initial_span)

    def begin(self, initial: int) -> None:
        """Make the parameters of spans, which begin at ``initial``."""
        raise NotImplementedError(f"{type(self).__name__} defines no begin")

    def spans(self, x: Tensor) -> Tensor:
        """z, (H,) or (B, H, N), of rows x (B, N, E)."""
        raise NotImplementedError(f"{type(self).__name__} defines no spans")

    def forward(self, x: Tensor, context: Context) -> tuple[Tensor, Context]:
        """Project, attend within spans, merge; while training, spans cost something."""
        q, k, v = self.project(x)
        q, k = self.turn(q, k, context)
        spans = self.spans(x)
        if self.training:
            valid = None if context.padding is None else context.padding.valid
            mean = spans.mean() if spans.dim() == 1 else mean_of_tokens(spans.mean(1), valid)
            context = context.add_loss("span", self.penalty * mean)
        return self.finish(self.within(spans, q, k, v, context), q, k, v, context)

    def within(self, spans: Tensor, q: Tensor, k: Tensor, v: Tensor, context: Context) -> Tensor:
        """Attention to what lies within ``spans`` and on the ramp beyond."""
        reach = math.ceil(float(spans.detach().max())) + self.ramp
        placed = self.bias(context)

        def added(queries: Tensor, keys: Tensor, *own: Tensor) -> Tensor:
            ends = (own[0] if own else spans.view(1, -1, 1, 1, 1)) + self.ramp
            share = ((ends - (queries[:, :, None] - keys[:, None]).abs()) / self.ramp).clamp(max=1)
            seen = share > 0
            # The logarithm of zero has no gradient, even where it is not used.
            logs = share.where(seen, 1).log().masked_fill(~seen, -torch.inf)
            return logs if placed is None else logs + placed(queries, keys)

        return within_window(
            q,
            k,
            v,
            window=-(-reach // MULTIPLE) * MULTIPLE,
            bias=added,
            bias_rows=() if spans.dim() == 1 else (spans[..., None],),
            causal=self.causal,
            padding=context.padding,
            dropout=self.drop_rate,
        )


class AdaptiveSpan(SpanAttention):
    """Each head has one z, stored as its share of the largest, which every step leaves between 0 and 1."""

    def begin(self, initial: int) -> None:
        """One number for each head."""
        self.share = nn.Parameter(torch.full((self.heads,), initial / self.span))

    def after_step(self, step: int, statistics: Mapping[str, Tensor]) -> None:
        """Bring spans back to where they are defined."""
        self.share.clamp_(0, 1)

    def spans(self, x: Tensor) -> Tensor:
        """z (H,) of heads, whatever x."""
        # With a negative one, which no step leaves behind, a token would not see itself.
        return self.span * self.share.clamp(min=0)

    def attend(self, q: Tensor, k: Tensor, v: Tensor, context: Context) -> Tensor:
        """Attention within the spans of heads."""
        return self.within(self.spans(q), q, k, v, context)
