"""Two streams in one mixer: the rows before the tokens, and the tokens."""

from __future__ import annotations

import torch
from torch import Tensor

from ..mixer import Context, Mixer, Padding


def streams(mixer: Mixer, x: Tensor, context: Context) -> tuple[Tensor, Tensor, Padding | None]:
    """The rows (B, P, E) before the tokens, the tokens (B, N, E) of x, and the padding of the tokens alone.

    Where nothing stands before the tokens, the mixer makes its rows for itself.
    """
    before, padding = context.prefix, context.padding
    if not before:
        rows = mixer.prefix_rows(x, context)
        return x[:, :0] if rows is None else rows, x, padding
    if padding is not None:
        padding = Padding(padding.valid[:, before:], padding.lengths - before)
    return x[:, :before], x[:, before:], padding


def joined(rows: Tensor, tokens: Tensor, context: Context) -> Tensor:
    """Both streams as the stack has them: without the rows that the mixer made for itself."""
    return torch.cat((rows, tokens), 1) if context.prefix else tokens
