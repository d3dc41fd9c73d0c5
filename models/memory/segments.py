"""Base class of mixers that read a sequence in segments and keep a memory of earlier segments."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Mapping, Sequence
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from lra_bench.contracts import UserError

from ..kernels.dropout import dropout
from ..kernels.softmax import additive_mask, grouped, lower
from ..mixer import Context, HeadMixer

DETACH = ("none", "segment")

Stored = Mapping[str, Tensor]
"""What a mixer stores about the tokens read so far: by name, rows (B, K, ...) in the order of the tokens."""


class SegmentMixer(HeadMixer):
    """Base class of attention to the current segment and to a memory of earlier segments: (B, N, E) -> (B, N, E).

    A sequence is cut into segments of ``segment`` tokens, counted from its first token, also if it is read in several
    parts: the outputs do not depend on the parts. Inside a segment attention has the direction of the model; across
    segments it is causal. A subclass defines ``read``, ``slots`` and ``capacity``. In a causal model the memory is
    passed on to the next batch of a stream, as ``read`` (B,), the number of tokens read, and the stored rows, aligned
    to the right: (B, capacity, ...). Rows of a batch that have read different numbers of tokens, which happens after
    the last, padded window of a document, are processed one group after the other.

    Args:
        width: Number of features E.
        heads: Number of heads H.
        segment: Number of tokens of a segment.
        memory: Number of positions before the segment that the memory holds (``memory_length``).
        detach: Where gradients stop inside a batch: ``none``, or ``segment``, at the start of each segment, as in the
            papers. They always stop at the start of a batch.
        **common: Arguments of ``HeadMixer``.
    """

    shows_heads = True

    def __init__(
        self,
        width: int,
        heads: int,
        *,
        segment: int = 512,
        memory: int = 512,
        detach: str = "none",
        **common: Any,
    ) -> None:
        super().__init__(width, heads, **common)
        if segment < 1:
            raise UserError(f"model.mixer.segment={segment}: must be at least 1")
        if memory < 0:
            raise UserError(f"model.mixer.memory={memory}: must be at least 0")
        if detach not in DETACH:
            raise UserError(f"model.mixer.detach={detach}: must be one of {', '.join(DETACH)}")
        self.segment, self.memory_length, self.detach = segment, memory, detach

    def slots(self, read: int) -> Mapping[str, int]:
        """Return by name how many rows are stored after ``read`` tokens."""
        raise NotImplementedError(f"{type(self).__name__} defines no slots")

    def capacity(self) -> Mapping[str, int]:
        """Return by name the largest number of rows that are stored after any number of tokens."""
        raise NotImplementedError(f"{type(self).__name__} defines no capacity")

    def row_shape(self, name: str) -> tuple[int, ...]:
        """Return the shape of one stored row; by default (E,)."""
        return (self.width,)

    def read(self, x: Tensor, stored: Stored, start: int, context: Context) -> tuple[Tensor, Stored, Context]:
        """Read tokens x (B, N, E) that follow ``start`` tokens, and return outputs, stored rows and context.

        Args:
            x: The inputs. If the model is causal, they have no padding.
            stored: Rows by name, as many as ``slots(start)`` says.
            start: Number of tokens read before, the same for all rows of x.
            context: The context of these rows; ``memory`` is not set.

        Returns:
            The outputs (B, N, E); the rows to store, as many as ``slots(start + N)`` says; the context with losses.
        """
        raise NotImplementedError(f"{type(self).__name__} defines no read")

    def restricts_from(self) -> int:
        """Return the length at which the first token is outside the memory, or a segment later, if bidirectional."""
        if not self.causal:
            return self.segment + 1
        return (self.memory_length // self.segment + 1) * self.segment + 1

    def forward(self, x: Tensor, context: Context) -> tuple[Tensor, Context]:
        """Read x (B, N, E) after the tokens of ``context.memory``, and return the memory after it if causal."""
        if not self.causal:
            y, _, context = self.read(x, self._empty(x), 0, context)
            return y, context
        batch, length = x.shape[:2]
        memory, context = context.memory, context.replace(memory=None)
        starts = [0] * batch if memory is None else memory["read"].tolist()
        lengths = [length] * batch if context.padding is None else context.padding.lengths_on_host().tolist()
        groups: dict[tuple[int, int], list[int]] = {}
        for row, key in enumerate(zip(starts, lengths, strict=True)):
            groups.setdefault(key, []).append(row)
        if list(groups) == [(starts[0], length)]:
            stored = self._unpacked(memory, starts[0]) if memory else self._empty(x)
            y, stored, context = self.read(x, stored, starts[0], context.replace(padding=None))
            return y, context.replace(memory=self._packed(stored, starts[0] + length))
        return self._in_groups(x, memory, groups, context)

    def _in_groups(
        self, x: Tensor, memory: Stored | None, groups: Mapping[tuple[int, int], list[int]], context: Context
    ) -> tuple[Tensor, Context]:
        """Read rows with the same numbers (tokens before, new tokens) together, one group after the other."""
        outputs, memories, order = [], [], []
        padding, losses, context = context.padding, context.losses, context.replace(padding=None, residual=None)
        positions = context.positions
        for (start, count), rows in groups.items():
            own = select(x, rows)
            stored = self._unpacked(memory, start, rows) if memory else self._empty(own)
            y = x.new_zeros(len(rows), 0, self.width)
            if count:
                places = positions if positions.dim() == 1 else select(positions, rows)
                group = context.replace(positions=places[..., :count], losses={})
                y, stored, group = self.read(own[:, :count], stored, start, group)
                context = context.replace(statistics=group.statistics)
                for name, loss in group.losses.items():
                    total = loss * (len(rows) / len(x))
                    losses = {**losses, name: losses[name] + total if name in losses else total}
            outputs.append(F.pad(y, (0, 0, 0, x.shape[1] - count)))
            memories.append(self._packed(stored, start + count))
            order.extend(rows)
        inverse = sorted(range(len(order)), key=order.__getitem__)
        joined = {name: select(torch.cat([each[name] for each in memories]), inverse) for name in memories[0]}
        context = context.replace(padding=padding, losses=losses, memory=joined)
        return select(torch.cat(outputs), inverse), context

    def _empty(self, x: Tensor) -> Stored:
        """Return what is stored before the first token."""
        return {name: x.new_zeros(len(x), 0, *self.row_shape(name)) for name in self.capacity()}

    def _packed(self, stored: Stored, read: int) -> Stored:
        """Return the stored rows aligned to the right in as many rows as there can be, and the number of tokens.

        The number is on the CPU, because the next call reads it there.
        """
        packed = {}
        for name, most in self.capacity().items():
            rows = stored[name]
            missing = rows.new_zeros(len(rows), most - rows.shape[1], *rows.shape[2:])
            packed[name] = torch.cat((missing, rows), 1)
        return {"read": torch.full((len(rows),), read), **packed}

    def _unpacked(self, memory: Stored, read: int, sequences: Sequence[int] | None = None) -> Stored:
        """Return the rows that are stored after ``read`` tokens for these sequences of the batch, by default all."""
        found = {
            name: memory[name] if sequences is None else select(memory[name], sequences) for name in self.capacity()
        }
        return {name: rows[:, rows.shape[1] - self.slots(read)[name] :] for name, rows in found.items()}

    def bounds(self, start: int, length: int) -> list[tuple[int, int]]:
        """Return the segments, or parts of segments, of tokens ``start`` to ``start + length``, as (first, end)."""
        inner = range((start // self.segment + 1) * self.segment, start + length, self.segment)
        ends = [*inner, start + length]
        return list(zip([start, *inner], ends, strict=True))

    def positions_from(self, first: int, start: int, length: int, context: Context) -> Tensor:
        """Return positions, (M,) or (B, M), of tokens ``first`` to ``start + length``.

        They count from the first stored token if the sequence is a stream. Position encodings of these systems must be
        relative, and in single precision the difference of large positions is not exact.
        """
        stored = start - first
        if self.position is not None and self.position.depends_on_length:
            own = context.clamped_positions()
            before = own[..., :1] - stored + torch.arange(stored, device=own.device)
            return torch.cat((before, own), -1)
        if context.positions.dim() == 1 and not stored:
            return context.positions
        return torch.arange(stored + length, device=context.positions.device)

    def keys_and_values(self, states: Tensor) -> tuple[Tensor, Tensor]:
        """Return keys and values (B, G, M, D) of states (B, M, E)."""
        return self.split(self.key(states)), self.split(self.value(states))

    def weigh(
        self,
        q: Tensor,
        k: Tensor,
        q_positions: Tensor,
        k_positions: Tensor,
        visible: Tensor | None,
    ) -> Tensor:
        """Return the attention weights (B, H, r, K) of one segment, before dropout.

        Args:
            q: Queries (B, H, r, D).
            k: Keys (B, G, K, D).
            q_positions: Positions of the queries, (r,) or (B, r).
            k_positions: Positions of the keys, (K,) or (B, K).
            visible: Bool mask that broadcasts to the weights, or None. A query without visible keys gets zeros.
        """
        return self.softmax(self.scores(q, k, q_positions, k_positions), visible)

    def scores(self, q: Tensor, k: Tensor, q_positions: Tensor, k_positions: Tensor) -> Tensor:
        """Return the scores (B, H, r, K) of queries and keys with the hooks of the position, as for ``weigh``."""
        if self.position is not None and "rotate" in self.position.hooks:
            q, k = self.position.rotate(q, k, q_positions, k_positions)
        scores = grouped(q * self.head_dim**-0.5, k.mT)
        if self.position is not None:
            scores = self.position.complete(scores, q, k, q_positions, k_positions)
        return scores

    def softmax(self, scores: Tensor, visible: Tensor | None) -> Tensor:
        """Return the softmax of the scores of visible keys, as ``weigh`` does."""
        if visible is None:
            return scores.softmax(-1)
        weights = (scores + additive_mask(visible, scores.dtype)).softmax(-1)
        return weights if self.causal else weights * visible.any(-1, keepdim=True)

    def combine(self, weights: Tensor, v: Tensor) -> Tensor:
        """Return the sums (B, H, r, D) of values v (B, G, K, D) with the weights, after dropout of weights."""
        return grouped(dropout(weights, self.drop_rate).to(v.dtype), v)

    def visible(self, low: int, first: int, end: int, context: Context) -> Tensor | None:
        """Return which of the tokens ``low`` to ``end`` the tokens ``first`` to ``end`` of one segment may attend to.

        The mask broadcasts to (B, H, end − first, end − low); None means all of them.
        """
        if self.causal:
            return lower(end - first, end - low, context.positions.device)
        return None if context.padding is None else context.padding.key_mask()[..., low:end]


class Strip:
    """Rows (..., N, D) along the second last axis, cut into parts from which windows are joined.

    Slices of one tensor in a loop would each write a gradient of the length of the whole tensor.

    Args:
        rows: The tensor.
        first: Number of the first row.
        ends: Ends of the parts (exclusive), increasing; the last is that of the rows.
    """

    def __init__(self, rows: Tensor, first: int, ends: Sequence[int]) -> None:
        self.starts = [first, *ends[:-1]]
        sizes = [end - start for start, end in zip(self.starts, ends, strict=True)]
        self.parts = rows.split(sizes, -2)

    def window(self, low: int, high: int) -> Tensor:
        """Return rows ``low`` to ``high`` (exclusive)."""
        found: list[Tensor] = []
        place = max(0, bisect_right(self.starts, low) - 1)
        while (place < len(self.parts) and (start := self.starts[place]) < high) or not found:
            part = self.parts[place]
            begin, end = max(low - start, 0), min(high - start, part.shape[-2])
            found.append(part if (begin, end) == (0, part.shape[-2]) else part[..., begin:end, :])
            place += 1
        return found[0] if len(found) == 1 else torch.cat(found, -2)

    def joined(self, newer: Strip, low: int, own: int, high: int) -> Tensor:
        """Return rows ``low`` to ``own`` of this strip and ``own`` to ``high`` of another with the same numbers."""
        if newer is self or low == own:
            return newer.window(low, high)
        return torch.cat((self.window(low, own), newer.window(own, high)), -2)


def select(x: Tensor, rows: Sequence[int]) -> Tensor:
    """Return the given rows of x (B, ...), without a tensor of indices that a GPU would have to receive."""
    return torch.cat([x[row : row + 1] for row in rows])
