"""Adaptive span: attention in windows whose width is learned for each head."""

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

MULTIPLE = 16  # window sizes are rounded up to this multiple, so that tensors have few distinct shapes


class SpanAttention(HeadMixer):
    """Attention whose weights are multiplied by a ramp from 1 to 0 between distances z and z + R, with learned z.

    Sukhbaatar et al. 2019, arXiv 1905.07799. q (B, H, N, D), k and v (B, G, N, D) -> (B, H, N, D). ``span`` is the
    maximum of z, ``initial_span`` its initial value, ``ramp`` is R; during training ``penalty`` times the mean z is
    added to the loss. O(N (z + R) D) time with the largest z of the layer, which is copied to the host (a
    synchronisation on a GPU, see ``largest``); memory O(N D) and one byte of mask for each of N (z + R) pairs.

    Deviations: if not causal, distances count on both sides. A token attends to itself, which the authors' code
    excludes, so that every token has a key. z is initialised to 32, in the authors' code to 0. The position encoding is
    left to the user.
    """

    spec = MixerSpec(
        family="heads",
        paper="Adaptive Attention Span in Transformers",
        arxiv="1905.07799",
        code="facebookresearch/adaptive-span@27b815f:adaptive_span.py",
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
            raise UserError(f"model.mixer.initial_span={initial_span}: must be between 0 and model.mixer.span={span}")
        self.span, self.ramp, self.penalty, self.initial_span = span, ramp, penalty, initial_span
        self.begin(initial_span)

    def restricts_from(self) -> int:
        """Return the smallest length at which the ramp of the initial span reduces a weight."""
        return self.initial_span + 2

    def begin(self, initial: int) -> None:
        """Create the parameters of the spans, initialised to ``initial``."""
        raise NotImplementedError(f"{type(self).__name__} defines no begin")

    def spans(self, x: Tensor) -> Tensor:
        """Return z, (H,) or (B, H, N), for x (B, N, E)."""
        raise NotImplementedError(f"{type(self).__name__} defines no spans")

    def forward(self, x: Tensor, context: Context) -> tuple[Tensor, Context]:
        """Project, attend within the spans and merge; during training add the penalty of the spans to the losses."""
        q, k, v = self.project(x)
        q, k = self.apply_rotation(q, k, context)
        spans = self.spans(x)
        if self.training:
            valid = None if context.padding is None else context.padding.valid
            mean = spans.mean() if spans.dim() == 1 else mean_of_tokens(spans.mean(1), valid)
            context = context.add_loss("span", self.penalty * mean)
        return self.finish(self.within(spans, q, k, v, context), q, k, v, context)

    def largest(self, spans: Tensor) -> float:
        """Return the largest of ``spans`` on the host; waits for the GPU."""
        return float(spans.detach().max())

    def within(self, spans: Tensor, q: Tensor, k: Tensor, v: Tensor, context: Context) -> Tensor:
        """Return attention restricted to ``spans`` and the ramp beyond them."""
        reach = math.ceil(self.largest(spans)) + self.ramp
        position_bias = self.bias(context)

        def score_bias(queries: Tensor, keys: Tensor, *query_spans: Tensor) -> Tensor:
            ends = (query_spans[0] if query_spans else spans.view(1, -1, 1, 1, 1)) + self.ramp
            share = ((ends - (queries[:, :, None] - keys[:, None]).abs()) / self.ramp).clamp(max=1)
            visible = share > 0
            # log(0) would make gradients NaN, even at entries that are masked afterwards.
            logs = share.where(visible, 1).log().masked_fill(~visible, -torch.inf)
            return logs if position_bias is None else logs + position_bias(queries, keys)

        return within_window(
            q,
            k,
            v,
            window=-(-reach // MULTIPLE) * MULTIPLE,
            bias=score_bias,
            bias_rows=() if spans.dim() == 1 else (spans[..., None],),
            causal=self.causal,
            padding=context.padding,
            dropout=self.drop_rate,
        )


class AdaptiveSpan(SpanAttention):
    """Adaptive span with one z per head, stored as a fraction of ``span`` and clamped to [0, 1] after each step."""

    def begin(self, initial: int) -> None:
        """Create one span parameter for each head."""
        self.share = nn.Parameter(torch.full((self.heads,), initial / self.span))
        self._largest = (0, -1), 0.0  # identity and version of ``share``, and the largest span

    def after_step(self, step: int, statistics: Mapping[str, Tensor]) -> None:
        """Clamp the spans to between 0 and ``span``, and on a GPU copy the largest one to the host."""
        self.share.clamp_(0, 1)
        if self.share.device.type == "cuda":
            self.largest(self.spans(self.share))

    def largest(self, spans: Tensor) -> float:
        """Return the largest span of the heads on the host.

        On a GPU the value of the last call is returned if the parameters were not changed since, so that forward passes
        do not wait: ``after_step`` reads the values of all layers, and waits only once for the kernels of the step.
        """
        if spans.device.type != "cuda":
            return super().largest(spans)
        version = id(self.share), self.share._version
        if self._largest[0] != version:
            self._largest = version, super().largest(spans)
        return self._largest[1]

    def spans(self, x: Tensor) -> Tensor:
        """Return z (H,), which does not depend on x."""
        # With a negative span, which after_step prevents, a token would not attend to itself.
        return self.span * self.share.clamp(min=0)

    def attend(self, q: Tensor, k: Tensor, v: Tensor, context: Context) -> Tensor:
        """Attend within the spans of the heads."""
        return self.within(self.spans(q), q, k, v, context)
