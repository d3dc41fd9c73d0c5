"""Base class of mixers that process the sequence with a recurrent state."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn

from lra_bench.contracts import UserError

from ..feedforward import linear
from ..kernels.dropout import dropout
from ..mixer import Context, Mixer, Padding


class Recurrence(Mixer):
    """Base class of mixers with a state that is updated token by token: x (B, N, E) -> (B, N, E).

    In the bidirectional form half of the channels run from the first token to the last and half in the opposite
    direction: two recurrences of half the width with separate weights. The causal form returns its state as memory.
    Raises ``UserError`` if the channels cannot be split between two directions.

    Args:
        width: Number of features E.
        heads: Number of heads H, if the recurrence has heads.
        inner: Number of channels C of the outputs of the recurrence.
        output: Module applied to these outputs; by default a projection to E. Dropout is applied to its input, because
            there are no attention weights to drop.
        **common: Arguments of ``Mixer``.
    """

    def __init__(self, width: int, heads: int, *, inner: int, output: nn.Module | None = None, **common: Any) -> None:
        super().__init__(width, heads, **common)
        if not self.causal and inner % 2:
            raise UserError(
                f"model.mixer: {type(self).__name__} splits {inner} channels between two directions; choose an "
                "even number"
            )
        self.output = linear(inner, width) if output is None else output

    def restricts_from(self) -> int:
        """Return 0: all previous tokens are in a state of fixed size."""
        return 0

    def ordered(self, x: Tensor, context: Context) -> Tensor:
        """Convert x (B, N, C) between token order and processing order; the same operation converts in both directions.

        Reverses the second half of the channels along the sequence in the bidirectional form.
        """
        if self.causal:
            return x
        forward, backward = x.chunk(2, -1)
        return torch.cat((forward, reverse(backward, context.padding)), -1)

    def finish(self, o: Tensor) -> Tensor:
        """Apply dropout and the output module to the outputs of the recurrence (B, N, C)."""
        y: Tensor = self.output(dropout(o, self.drop_rate))
        return y

    def remember(self, context: Context, **state: Tensor) -> Context:
        """Return ``context`` with ``state`` as memory for the next tokens; unchanged in the bidirectional form."""
        return context.replace(memory=state) if self.causal else context


def reverse(x: Tensor, padding: Padding | None) -> Tensor:
    """Return x (B, N, C) with the order of the valid positions reversed; padding stays at the end."""
    if padding is None:
        return x.flip(1)
    positions = torch.arange(x.shape[1], device=x.device)
    mirrored = torch.where(padding.valid, padding.lengths[:, None] - 1 - positions, positions)
    return x.gather(1, mirrored[..., None].expand_as(x))


def last_rows(x: Tensor, before: Tensor, padding: Padding | None) -> Tensor:
    """Return the last R valid positions (B, R, ...) of ``before`` (B, R, ...) followed by x (B, N, ...)."""
    count, length = before.shape[1], x.shape[1]
    if padding is None:
        return torch.cat((before, x[:, max(length - count, 0) :]), 1)[:, min(length, count) :]
    joined = torch.cat((before, x), 1)
    index = padding.lengths[:, None] + torch.arange(count, device=x.device)
    return joined.gather(1, index.reshape(*index.shape, *[1] * (x.dim() - 2)).expand(-1, -1, *x.shape[2:]))
