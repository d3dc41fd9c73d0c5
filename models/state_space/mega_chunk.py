"""Mega-chunk: Mega with attention inside chunks; moving averages connect the chunks."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from lra_bench.contracts import UserError

from ..mixer import Padding
from .mega import Function, Mega


class MegaChunk(Mega):
    """Mega whose attention is limited to chunks of ``chunk`` tokens: linear in the sequence length.

    Ma et al. 2022, arXiv 2209.10655, section 3.5. x (B, N, E) -> (B, N, E). O(N c E + N E log N) time, O(N (c + E))
    memory for chunks of c tokens, counted from the first position. The causal form continues from its memory, which
    stores the moving averages and the keys and values of the last incomplete chunk. ``reach`` is ``chunk`` by default.
    Other options and deviations as in ``Mega``. Raises ``UserError`` if ``chunk`` is less than 1.
    """

    spec = replace(Mega.spec, growth=1.0, materialises="no", memory=True)

    def __init__(
        self,
        width: int,
        heads: int,
        *,
        chunk: int = 128,
        averages: int | None = None,
        query_width: int | None = None,
        hidden: int | None = None,
        function: Function = "softmax",
        reach: int | None = None,
        attention_dropout: float = 0.0,
        **common: Any,
    ) -> None:
        if chunk < 1:
            raise UserError(f"model.mixer.chunk={chunk}: must be at least 1")
        super().__init__(
            width,
            heads,
            averages=averages,
            query_width=query_width,
            hidden=hidden,
            function=function,
            reach=chunk if reach is None else reach,
            attention_dropout=attention_dropout,
            **common,
        )
        self.chunk = chunk

    def restricts_from(self) -> int:
        """Return the smallest length of two chunks."""
        return self.chunk + 1

    def attend(
        self, q: Tensor, k: Tensor, v: Tensor, padding: Padding | None, memory: dict[str, Tensor]
    ) -> tuple[Tensor, dict[str, Tensor]]:
        """Attend within chunks: q and k (B, N, Z), v (B, N, V) to (B, N, V).

        In the causal form also return in ``memory`` the keys and values (B, c − 1, Z + V) of the last incomplete chunk,
        zero beyond their number, and their number (B,).
        """
        length, width = q.shape[1], q.shape[2]
        ends = q.new_full((len(q),), length, dtype=torch.long) if padding is None else padding.lengths
        projected, stored = torch.cat((q, k, v), -1), None
        if "open" in memory:
            # Insert the stored keys and values, a different number for each sequence, in front of the new ones.
            stored, open_chunk = memory["first"], F.pad(memory["open"].to(q.dtype), (width, 0))
            positions = torch.arange(length + self.chunk - 1, device=q.device)
            sources = torch.where(positions < stored[:, None], positions, self.chunk - 1 + positions - stored[:, None])
            projected = _take(torch.cat((open_chunk, projected), 1), sources)
            ends = ends + stored
        q, k, v = projected.split((width, width, v.shape[-1]), -1)
        o = self._attend_within_chunks(q, k, v, ends)
        if stored is not None:
            o = _take(o, stored[:, None] + torch.arange(length, device=q.device))
        if not self.causal:
            return o, memory
        remainder = ends % self.chunk
        positions = torch.arange(self.chunk - 1, device=q.device)
        new_open_chunk = _take(projected[..., width:], (ends - remainder)[:, None] + positions).masked_fill(
            (positions >= remainder[:, None])[..., None], 0
        )
        return o, {**memory, "open": new_open_chunk, "first": remainder}

    def _attend_within_chunks(self, q: Tensor, k: Tensor, v: Tensor, ends: Tensor) -> Tensor:
        """Attend within chunks counted from the first position, in sequences of ``ends`` (B,) positions."""
        length = q.shape[1]
        parts = (F.pad(x, (0, 0, 0, -length % self.chunk)).unflatten(1, (-1, self.chunk)) for x in (q, k, v))
        q, k, v = (x.flatten(0, 1) for x in parts)
        starts = torch.arange(0, length, self.chunk, device=q.device)
        lengths = (ends[:, None] - starts).clamp(0, self.chunk).flatten()
        o = self.weigh(q, k, v, Padding.from_lengths(lengths, self.chunk))
        return o.unflatten(0, (-1, len(starts))).flatten(1, 2)[:, :length]


def _take(x: Tensor, positions: Tensor) -> Tensor:
    """Return x (B, N, C) at ``positions`` (B, M); positions beyond the end give the last one."""
    return x.gather(1, positions.clamp(max=x.shape[1] - 1)[..., None].expand(-1, -1, x.shape[2]))
