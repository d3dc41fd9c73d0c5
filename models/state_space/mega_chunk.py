"""Gated attention inside chunks, between which moving averages carry what was seen."""

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
    """Mega whose attention sees no more than its chunk of ``chunk`` tokens: linear in the length.

    Ma et al. 2022, arXiv 2209.10655, section 3.5. x (B, N, E) -> (B, N, E). O(N c E + N E log N) time, O(N (c + E))
    memory. Chunks are counted from the first row. A causal form goes on where it stopped: with its averages, and with
    the keys and values of the chunk that is not yet full. ``reach`` is by default ``chunk``. All else, and what
    deviates, as ``Mega``.
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
            **common,
        )
        self.chunk = chunk

    def attend(
        self, q: Tensor, k: Tensor, v: Tensor, padding: Padding | None, memory: dict[str, Tensor]
    ) -> tuple[Tensor, dict[str, Tensor]]:
        """Attention within chunks; and the keys and values (B, c − 1, Z + V) of the last one, as far as it is full."""
        length, width = q.shape[1], q.shape[2]
        ends = q.new_full((len(q),), length, dtype=torch.long) if padding is None else padding.lengths
        rows, first = torch.cat((q, k, v), -1), None
        if "open" in memory:
            # Behind those that wait, as many for each row as it says.
            first, waiting = memory["first"], F.pad(memory["open"].to(q.dtype), (width, 0))
            places = torch.arange(length + self.chunk - 1, device=q.device)
            moved = torch.where(places < first[:, None], places, self.chunk - 1 + places - first[:, None])
            rows = _taken(torch.cat((waiting, rows), 1), moved)
            ends = ends + first
        q, k, v = rows.split((width, width, v.shape[-1]), -1)
        o = self._within(q, k, v, ends)
        if first is not None:
            o = _taken(o, first[:, None] + torch.arange(length, device=q.device))
        if not self.causal:
            return o, memory
        left = ends % self.chunk
        places = torch.arange(self.chunk - 1, device=q.device)
        still = _taken(rows[..., width:], (ends - left)[:, None] + places).masked_fill(
            (places >= left[:, None])[..., None], 0
        )
        return o, {**memory, "open": still, "first": left}

    def _within(self, q: Tensor, k: Tensor, v: Tensor, ends: Tensor) -> Tensor:
        """Attention within chunks counted from the first row, of rows that end at ``ends`` (B,)."""
        length = q.shape[1]
        parts = (F.pad(x, (0, 0, 0, -length % self.chunk)).unflatten(1, (-1, self.chunk)) for x in (q, k, v))
        q, k, v = (x.flatten(0, 1) for x in parts)
        starts = torch.arange(0, length, self.chunk, device=q.device)
        lengths = (ends[:, None] - starts).clamp(0, self.chunk).flatten()
        o = self.weigh(q, k, v, Padding.from_lengths(lengths, self.chunk))
        return o.unflatten(0, (-1, len(starts))).flatten(1, 2)[:, :length]


def _taken(x: Tensor, places: Tensor) -> Tensor:
    """Rows of x (B, N, C) at ``places`` (B, M), the last one in place of those beyond."""
    return x.gather(1, places.clamp(max=x.shape[1] - 1)[..., None].expand(-1, -1, x.shape[2]))
