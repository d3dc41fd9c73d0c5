"""Attention in a window whose tokens stand apart, further in some heads than in others."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import groupby
from typing import Any

import torch
from torch import Tensor

from lra_bench.contracts import UserError

from ..kernels.patterns import within_window
from ..mixer import Context, HeadMixer, MixerSpec


class DilatedWindow(HeadMixer):
    """Softmax attention to the tokens at most ``window`` steps of ``dilation`` places away, or, if causal, before.

    The dilated pattern of Lin et al. 2021, arXiv 2106.04554, with a dilation for each head as in Longformer (Beltagy et
    al. 2020, arXiv 2004.05150). q, k, v (B, H, N, D) -> (B, H, N, D). O(N w D) time and memory. ``window`` is
    one-sided, one for all layers or a list of one for each; ``dilation`` is one for all heads or a list. By default it
    is a power of two that rises from 1 in the first head until the last one's window spans ``max_length``: under one
    dilation alone, tokens of different residues would never meet. Prefix rows are ordinary rows.
    """

    spec = MixerSpec(
        family="sparse",
        paper="Longformer: The Long-Document Transformer",
        arxiv="2004.05150",
        causal="exact",
        positions=("embed", "rotate"),
        full_config={"window": 1_000_000, "dilation": 1},
    )

    def __init__(
        self,
        width: int,
        heads: int,
        *,
        window: int | Sequence[int] = 64,
        dilation: int | Sequence[int] | None = None,
        **common: Any,
    ) -> None:
        super().__init__(width, heads, **common)
        self.window = _each("window", window, self.depth, "layers", 0)[self.layer]
        if dilation is None:
            dilation = spread(heads, self.max_length // (2 * self.window + 1))
        self.dilation = _each("dilation", dilation, heads, "heads", 1)
        if self.kv_heads != heads and len(set(self.dilation)) > 1:
            raise UserError("model.mixer.kv_heads: heads of different dilation share no keys; give one for all")

    def attend(self, q: Tensor, k: Tensor, v: Tensor, context: Context) -> Tensor:
        """Attention in the windows of each run of heads that have one dilation."""
        return self.windows(q, k, v, context)

    def windows(self, q: Tensor, k: Tensor, v: Tensor, context: Context, leading: int = 0) -> Tensor:
        """Attention in windows and to the first ``leading`` tokens, what these see themselves left open."""
        parts, start = [], 0
        for dilation, run in groupby(self.dilation):
            # All heads are one run, or there are as many keys as heads.
            stop = start + len(list(run))
            parts.append(
                within_window(
                    *(x[:, start:stop] for x in (q, k, v)),
                    window=self.window,
                    dilation=dilation,
                    leading=leading,
                    causal=self.causal,
                    padding=context.padding,
                    dropout=self.drop_rate,
                )
            )
            start = stop
        return parts[0] if len(parts) == 1 else torch.cat(parts, 1)


def spread(heads: int, most: int) -> tuple[int, ...]:
    """A power of two for each head, from 1 in the first to the largest within ``most`` in the last."""
    largest = max(1, most).bit_length() - 1
    return tuple(2 ** round(head * largest / max(1, heads - 1)) for head in range(heads))


def _each(name: str, given: int | Sequence[int], count: int, of: str, least: int) -> tuple[int, ...]:
    """``given`` for each of ``count`` layers or heads."""
    values = (given,) * count if isinstance(given, int) else tuple(given)
    if len(values) != count:
        raise UserError(f"model.mixer.{name}={list(values)}: must be one number, or one for each of {count} {of}")
    if min(values) < least:
        raise UserError(f"model.mixer.{name}={given}: must be at least {least}")
    return values
