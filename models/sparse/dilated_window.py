"""Dilated window attention: a sliding window with a different dilation in each head."""

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
    """Softmax attention to the tokens at most w steps away, each step being a number of tokens, the dilation.

    The dilated pattern of Lin et al. 2021, arXiv 2106.04554, with a dilation for each head as in Longformer (Beltagy et
    al. 2020, arXiv 2004.05150). If causal, only preceding tokens and the token itself are visible. q, k, v (B, H, N, D)
    -> (B, H, N, D). O(N w D) time and memory. Prefix rows are treated like tokens.

    ``window`` is w, one-sided, either one number for all layers or a list with one for each layer. ``dilation`` is one
    number for all heads or a list with one for each head. By default it is a power of two that increases from 1 in the
    first head to the largest value whose window fits in ``max_length`` in the last head: with a single dilation,
    tokens in different residue classes would never interact. Raises ``UserError`` if an option is invalid, or if
    ``kv_heads`` differs from ``heads`` and heads have different dilations.

    Deviations from the paper: there are no global tokens; by default every layer has the same dilations, which differ
    in all heads, while the paper dilates two heads of the upper layers only.
    """

    spec = MixerSpec(
        family="sparse",
        paper="Longformer: The Long-Document Transformer",
        arxiv="2004.05150",
        code="allenai/longformer@caefee6:longformer/diagonaled_mm_tvm.py",
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
        self.window = _per_item("window", window, self.depth, "layers", 0)[self.layer]
        if dilation is None:
            dilation = spread(heads, self.max_length // (2 * self.window + 1))
        self.dilation = _per_item("dilation", dilation, heads, "heads", 1)
        if self.kv_heads != heads and len(set(self.dilation)) > 1:
            raise UserError(
                f"model.mixer.kv_heads={self.kv_heads}: heads with different dilations cannot share keys; "
                "set one dilation for all heads"
            )

    def restricts_from(self) -> int:
        """Return w + 2, or 2 if a head has a dilation, which skips adjacent tokens."""
        return self.window + 2 if max(self.dilation) == 1 else 2

    def attend(self, q: Tensor, k: Tensor, v: Tensor, context: Context) -> Tensor:
        """Compute attention in the dilated windows of all heads."""
        return self.windows(q, k, v, context)

    def windows(self, q: Tensor, k: Tensor, v: Tensor, context: Context, leading: int = 0) -> Tensor:
        """Compute attention in windows and to the first ``leading`` tokens; the outputs of these are unspecified."""
        parts, start = [], 0
        for dilation, run in groupby(self.dilation):
            # Either all heads have one dilation, or there are as many key heads as heads.
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
    """Return a power of two for each head, from 1 in the first to the largest up to ``most`` in the last."""
    largest = max(1, most).bit_length() - 1
    return tuple(2 ** round(head * largest / max(1, heads - 1)) for head in range(heads))


def _per_item(name: str, given: int | Sequence[int], count: int, of: str, least: int) -> tuple[int, ...]:
    """Return one value for each of ``count`` layers or heads; ``of`` names them in errors.

    Raises ``UserError`` if a list has another length, or a value is below ``least``.
    """
    values = (given,) * count if isinstance(given, int) else tuple(given)
    if len(values) != count:
        raise UserError(f"model.mixer.{name}={list(values)}: must be one number, or one for each of {count} {of}")
    if min(values) < least:
        raise UserError(f"model.mixer.{name}={given}: must be at least {least}")
    return values
