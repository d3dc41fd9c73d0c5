"""What all systems that read rows one after the other have in common."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn

from lra_bench.contracts import UserError

from ..feedforward import linear
from ..kernels.dropout import dropout
from ..mixer import Context, Mixer, Padding


class Recurrence(Mixer):
    """A state goes from row to row: x (B, N, E) -> (B, N, E).

    Where both directions are seen, half of the channels are read from the first token on and half from the last one
    back: two recurrences of half the width, with weights of their own. A causal form hands its state on as memory.
    ``inner`` is how many channels are read, ``output`` what stands behind them, by default a projection; rows are
    dropped before it, for there are no weights between tokens to drop.
    """

    def __init__(self, width: int, heads: int, *, inner: int, output: nn.Module | None = None, **common: Any) -> None:
        super().__init__(width, heads, **common)
        if not self.causal and inner % 2:
            raise UserError(
                f"model.mixer: {type(self).__name__} reads {inner} channels in two directions; make it even"
            )
        self.output = linear(inner, width) if output is None else output

    def ordered(self, x: Tensor, context: Context) -> Tensor:
        """x (B, N, C) in the order in which its channels are read, or, the same again, back in that of the tokens."""
        if self.causal:
            return x
        ahead, back = x.chunk(2, -1)
        return torch.cat((ahead, reverse(back, context.padding)), -1)

    def finish(self, o: Tensor) -> Tensor:
        """Drop and project what was read (B, N, C)."""
        y: Tensor = self.output(dropout(o, self.drop_rate))
        return y

    def remember(self, context: Context, **state: Tensor) -> Context:
        """``context`` with what the next rows begin from; without it where there are none."""
        return context.replace(memory=state) if self.causal else context


def reverse(x: Tensor, padding: Padding | None) -> Tensor:
    """x (B, N, C) from its last real row to its first; padding stays behind them."""
    if padding is None:
        return x.flip(1)
    places = torch.arange(x.shape[1], device=x.device)
    mirrored = torch.where(padding.valid, padding.lengths[:, None] - 1 - places, places)
    return x.gather(1, mirrored[..., None].expand_as(x))


def last_rows(x: Tensor, before: Tensor, padding: Padding | None) -> Tensor:
    """As many rows as ``before`` (B, R, ...) has, the last real ones of it followed by x (B, N, ...)."""
    count, length = before.shape[1], x.shape[1]
    if padding is None:
        return torch.cat((before, x[:, max(length - count, 0) :]), 1)[:, min(length, count) :]
    rows = torch.cat((before, x), 1)
    places = padding.lengths[:, None] + torch.arange(count, device=x.device)
    return rows.gather(1, places.reshape(*places.shape, *[1] * (x.dim() - 2)).expand(-1, -1, *x.shape[2:]))
