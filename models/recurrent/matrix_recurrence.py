"""Recurrent systems whose state is a matrix for each head: linear attention that fades or corrects itself."""

from __future__ import annotations

from typing import Any, ClassVar

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from lra_bench.contracts import UserError

from ..feedforward import linear
from ..kernels.accelerated import accelerable, accelerated_decay_attention
from ..kernels.decay import decay_attention
from ..mixer import Context, Padding
from .recurrence import Recurrence
from .short_filter import ShortFilter


class MatrixRecurrence(Recurrence):
    """Values are added to a state under their keys, and queries read it: x (B, N, E) -> (B, N, E).

    A variant defines ``decays``, or ``recall`` as a whole, and ``features`` where queries, keys and values go through
    more than a projection. Where both directions are seen, every head becomes two of half the width, one for each.
    ``key_width`` is that of all queries, and of all keys, by default half the width; ``filter`` the rows that a
    convolution before the state sees, 0 for none; ``gated`` whether a SiLU gate follows the norm of each head's output.
    """

    shares_keys: ClassVar[bool] = False
    """Whether all heads of a direction have the same queries and keys."""

    def __init__(
        self,
        width: int,
        heads: int,
        *,
        key_width: int | None = None,
        filter: int = 0,
        gated: bool = True,
        **common: Any,
    ) -> None:
        super().__init__(width, heads, inner=width, **common)
        key_width = max(width // 2, 1) if key_width is None else key_width
        self.streams = heads if self.causal else 2 * heads
        self.groups = self.streams if not self.shares_keys else 1 if self.causal else 2
        if width % self.streams or key_width % self.groups or key_width < self.groups:
            directions = "" if self.causal else " in two directions"
            raise UserError(
                f"backbone.heads={heads}: {self.streams} recurrences{directions} do not divide width {width} and "
                f"model.mixer.key_width={key_width}"
            )
        if filter < 0:
            raise UserError(f"model.mixer.filter={filter}: must be a number of rows, or 0 for no convolution")
        self.head_dim, self.key_dim = width // self.streams, key_width // self.groups
        self.query, self.key, self.value = linear(width, key_width), linear(width, key_width), linear(width, width)
        self.filters = nn.ModuleList(ShortFilter(size, filter) for size in (key_width, key_width, width) if filter)
        self.norm = nn.RMSNorm(self.head_dim)
        self.gate = linear(width, width) if gated else None
        self.accelerated = False

    def accelerate(self) -> None:
        """Let the state fade and be read by the kernels of flash-linear-attention."""
        self.accelerated = True

    def forward(self, x: Tensor, context: Context) -> tuple[Tensor, Context]:
        """Project, recall, gate, project."""
        if context.padding is not None:
            x = context.padding.zero(x)
        memory = {} if context.memory is None else dict(context.memory)
        rows = [self.ordered(project(x), context) for project in (self.query, self.key, self.value)]
        for number, short in enumerate(self.filters):
            rows[number], memory[f"filter{number}"] = short(
                rows[number], memory.get(f"filter{number}"), context.padding
            )
        q, k, v = self.features(*(self.split(each, count) for each, count in zip(rows, self._counts, strict=True)))
        q, k = self.turn(q, k, context)
        o, memory["state"] = self.recall(q, k, v, x, context, memory.get("state"))
        return self.finish(self.gated(o.to(x.dtype), x, context)), self.remember(context, **memory)

    @property
    def _counts(self) -> tuple[int, int, int]:
        return self.groups, self.groups, self.streams

    def split(self, x: Tensor, count: int) -> Tensor:
        """(B, N, count·D) to (B, H, N, D); of all heads, which share what there are fewer of."""
        x = x.unflatten(-1, (count, -1)).transpose(1, 2)
        return x if count == self.streams else x.repeat_interleave(self.streams // count, 1)

    def gated(self, o: Tensor, x: Tensor, context: Context) -> Tensor:
        """What was read (B, H, N, V), of unit size in each head, behind the gate: (B, N, E)."""
        o = self.ordered(self.norm(o).transpose(1, 2).flatten(2), context)
        return o if self.gate is None else o * F.silu(self.gate(x))

    def by_stream(self, x: Tensor, context: Context) -> Tensor:
        """A number for each stream and row (B, N, H) to (B, H, N), in single precision or better."""
        x = self.ordered(x, context).transpose(1, 2)
        return x.float() if x.dtype.itemsize < 4 else x

    def features(self, q: Tensor, k: Tensor, v: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """Queries and keys (B, H, N, K) and values (B, H, N, V) as they meet the state."""
        return q, k, v

    def decays(self, x: Tensor, context: Context) -> tuple[Tensor, Tensor | None]:
        """Logarithms of what is kept, (B, H, N) or (B, H, N, K), and strengths of the delta rule or None."""
        raise NotImplementedError(f"{type(self).__name__} defines no decays")

    def recall(
        self, q: Tensor, k: Tensor, v: Tensor, x: Tensor, context: Context, state: Tensor | None
    ) -> tuple[Tensor, Tensor]:
        """What queries read (B, H, N, V), and the state after the last real row."""
        log_decay, strength = self.decays(x, context)
        if context.padding is not None:
            k, log_decay = context.padding.zero_heads(k), still(log_decay, context.padding)
            strength = None if strength is None else still(strength, context.padding)
        return self.decay_attention(q, k, v, log_decay, strength=strength, state=state)

    def decay_attention(self, q: Tensor, k: Tensor, v: Tensor, log_decay: Tensor, **more: Any) -> tuple[Tensor, Tensor]:
        """The kernel of that name, or its accelerated form."""
        kernel = accelerated_decay_attention if self.accelerated and accelerable(q, v) else decay_attention
        return kernel(q, k, v, log_decay, **more)


def still(x: Tensor, padding: Padding) -> Tensor:
    """x (B, H, N) or (B, H, N, K) with zeros at padding, which leave the state as it is."""
    valid = padding.valid[:, None]
    return torch.where(valid[..., None] if x.dim() == 4 else valid, x, 0)
