"""Local attention: softmax attention in a sliding window."""

from __future__ import annotations

from typing import Any

from torch import Tensor

from lra_bench.contracts import UserError

from ..kernels.patterns import within_window
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

    def __init__(self, width: int, heads: int, *, window: int = 64, **common: Any) -> None:
        super().__init__(width, heads, **common)
        if window < 0:
            raise UserError(f"model.mixer.window={window}: must not be negative")
        self.window = window

    def restricts_from(self) -> int:
        """Return w + 2, the smallest length at which the first and the last token do not see each other."""
        return self.window + 2

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
