"""Helpers for mixers that treat prefix rows and tokens separately."""

from __future__ import annotations

import torch
from torch import Tensor

from ..mixer import Context, Mixer, Padding


def streams(mixer: Mixer, x: Tensor, context: Context) -> tuple[Tensor, Tensor, Padding | None]:
    """Return the prefix rows (B, P, E) of x, its tokens (B, N, E) and the padding of the tokens.

    If x has no prefix, the rows are those of ``mixer.prefix_rows``.
    """
    before, padding = context.prefix, context.padding
    if not before:
        rows = mixer.prefix_rows(x, context)
        return x[:, :0] if rows is None else rows, x, padding
    if padding is not None:
        padding = Padding(padding.valid[:, before:], padding.lengths - before)
    return x[:, :before], x[:, before:], padding


def joined(rows: Tensor, tokens: Tensor, context: Context) -> Tensor:
    """Return prefix rows and tokens in one tensor, or only the tokens if the input of the mixer had no prefix."""
    return torch.cat((rows, tokens), 1) if context.prefix else tokens
