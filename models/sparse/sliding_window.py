"""Local attention: softmax attention in a sliding window."""

from __future__ import annotations

from typing import Any

from torch import Tensor

from lra_bench.contracts import UserError

from ..full.softmax_attention import step_bias
from ..kernels.patterns import within_window
from ..kernels.step_attention import appended, step_attention
from ..mixer import Context, HeadMixer, MixerSpec


class SlidingWindow(HeadMixer):
    """Softmax attention to the token itself and the ``window`` tokens on each side, or, if causal, only before it.

    The band pattern of Lin et al. 2021, arXiv 2106.04554; that of Longformer, arXiv 2004.05150, without global tokens.
    q (B, H, N, D), k and v (B, G, N, D) -> (B, H, N, D). O(N w D) time and memory, with w = ``window``. Prefix rows are
    treated like tokens: a CLS row attends to the first ``window`` tokens. Raises ``UserError`` if ``window`` is
    negative.

    Deviations from the paper: there are no global tokens, and all layers have the same window.
    """

    spec = MixerSpec(
        family="sparse",
        paper="Longformer: The Long-Document Transformer",
        arxiv="2004.05150",
        code="allenai/longformer@caefee6:longformer/sliding_chunks.py",
        causal="exact",
        positions=("embed", "rotate", "bias"),
        full_config={"window": 1_000_000},
    )
    shows_heads = True
    has_step_form = True

    def __init__(self, width: int, heads: int, *, window: int = 64, **common: Any) -> None:
        super().__init__(width, heads, **common)
        if window < 0:
            raise UserError(f"model.mixer.window={window}: must not be negative")
        self.window = window

    def restricts_from(self) -> int:
        """Return w + 2, the smallest length at which the first and the last token do not see each other."""
        return self.window + 2

    def forward(self, x: Tensor, context: Context) -> tuple[Tensor, Context]:
        """Project, attend and merge; if the network keeps memory, it is that of the last ``window`` tokens."""
        if not context.keeps_memory:
            return super().forward(x, context)
        q, k, v = self.project(x)
        q, k = self.apply_rotation(q, k, context)
        rows = appended(context.memory, k=k, v=v)
        bias = step_bias(self, q, rows["k"], context)
        o = step_attention(q, rows["k"], rows["v"], scale=self.head_dim**-0.5, bias=bias, window=self.window)
        first = max(rows["k"].shape[2] - self.window, 0)
        memory = {name: each[:, :, first:].clone() for name, each in rows.items()}
        return self.finish(o, q, k, v, context.replace(memory=memory))

    def attend(self, q: Tensor, k: Tensor, v: Tensor, context: Context) -> Tensor:
        """Compute attention within the window."""
        return within_window(
            q,
            k,
            v,
            window=self.window,
            bias=self.bias(context),
            causal=self.causal,
            padding=context.padding,
            dropout=self.drop_rate,
        )
