"""Attention in a window that slides with the token."""

from __future__ import annotations

from typing import Any

from torch import Tensor

from lra_bench.contracts import UserError

from ..kernels.patterns import within_window
from ..mixer import Context, HeadMixer, MixerSpec


class SlidingWindow(HeadMixer):
    """Softmax attention to the tokens at most ``window`` places away, on both sides or, if causal, before.

    The atomic band pattern of Lin et al. 2021, arXiv 2106.04554; as in Longformer, arXiv 2004.05150, without its
    global tokens. q (B, H, N, D), k and v (B, G, N, D) -> (B, H, N, D). ``window`` is one-sided.
    O(N w D) time and memory. Prefix rows are ordinary rows: a CLS row sees the first ``window`` tokens.
    """

    spec = MixerSpec(
        family="sparse",
        paper="Longformer: The Long-Document Transformer",
        arxiv="2004.05150",
        causal="exact",
        positions=("embed", "rotate", "bias"),
        full_config={"window": 1_000_000},
    )

    def __init__(self, width: int, heads: int, *, window: int = 64, **common: Any) -> None:
        super().__init__(width, heads, **common)
        if window < 0:
            raise UserError(f"model.mixer.window={window}: must not be negative")
        self.window = window

    def attend(self, q: Tensor, k: Tensor, v: Tensor, context: Context) -> Tensor:
        """Attention within the band."""
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
