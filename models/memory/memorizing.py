"""Memorizing Transformer: attention to a local window, and to the best of many older keys and values."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from lra_bench.contracts import UserError

from ..kernels.softmax import additive_mask, grouped
from ..mixer import Context, MixerSpec
from .search import best_products
from .segments import SegmentMixer, Stored, Strip

COMBINATIONS = ("gate", "joint")


class Memorizing(SegmentMixer):
    """Softmax attention to a local window and, in one layer, to the k best of the older keys in a memory.

    Wu et al. 2022, arXiv 2203.08913. A memory of the last M = ``memory`` keys and values, first in, first out, without
    gradient. The C = ``cache`` newest of them and the current segment are the local window, with positions. Among the
    others, each query selects the k = ``neighbours`` largest inner products, without positions. With ``combine=gate``
    the outputs of both attentions are g · o_memory + (1 − g) · o_local with a learned g per head; ``joint`` is one
    softmax over both. Layers other than ``memory_layer`` have the local window only. Queries and keys have unit norm
    and a learned temperature per head (``qk_norm``), so that old keys remain comparable.

    O(N (S + C + M) E) time in the layer with memory, of which the part with M needs no gradient, and O(N (S + C) E) in
    others, for segments of S tokens; a state of at most 2 (M + S − 1) E numbers. Positions must be relative.

    Deviations from the paper: the memory excludes the tokens of the local window; tokens whose memory is empty use
    local attention alone; inside a segment attention is bidirectional if the model is; gradients flow through the local
    window across the segments of a batch unless ``detach`` is ``segment``.

    Deviations from the authors' code: with ``qk_norm`` the factor of the inner products begins at √D, there at 1, and
    may become negative, there its absolute value is used; a token attends to itself, to the tokens before it in its
    segment and to C tokens before the segment, there to exactly W tokens before it and not to itself; the layer with
    memory has the position encoding too, there it has none.

    Args:
        width: Number of features E.
        heads: Number of heads H.
        segment: Number of tokens S of a segment.
        memory: Number of tokens M before the segment whose keys and values are stored, in the layer with memory.
        detach: As in ``SegmentMixer``.
        cache: Number C of them that belong to the local window.
        neighbours: Number k of keys that a query selects.
        memory_layer: Number of the layer with memory, from 1; by default three quarters of the depth, the 9th of 12.
        combine: ``gate`` or ``joint``.
        qk_norm: Whether queries and keys have unit norm.
        **common: Arguments of ``SegmentMixer``.
    """

    spec = MixerSpec(
        family="memory",
        paper="Memorizing Transformers",
        arxiv="2203.08913",
        code="google-research/meliad@9b21017:transformer/memory_layer.py",
        causal="exact",
        positions=("embed", "rotate", "bias", "scores", "weight"),
        memory=True,
        full_config={"segment": 512, "qk_norm": False, "kv_heads": None, "merge": None},
    )

    def __init__(
        self,
        width: int,
        heads: int,
        *,
        segment: int = 512,
        memory: int = 8192,
        detach: str = "none",
        cache: int = 512,
        neighbours: int = 32,
        memory_layer: int | None = None,
        combine: str = "gate",
        qk_norm: bool = True,
        **common: Any,
    ) -> None:
        super().__init__(width, heads, segment=segment, memory=memory, detach=detach, **common)
        if cache < 0:
            raise UserError(f"model.mixer.cache={cache}: must be at least 0")
        if neighbours < 1:
            raise UserError(f"model.mixer.neighbours={neighbours}: must be at least 1")
        if combine not in COMBINATIONS:
            raise UserError(f"model.mixer.combine={combine}: must be one of {', '.join(COMBINATIONS)}")
        if memory_layer is not None and not 1 <= memory_layer <= self.depth:
            raise UserError(f"model.mixer.memory_layer={memory_layer}: must be between 1 and the depth {self.depth}")
        self.cache, self.neighbours, self.joint, self.qk_norm = cache, neighbours, combine == "joint", qk_norm
        chosen = memory_layer or max(1, round(0.75 * self.depth))
        self.searches = self.layer == chosen - 1
        self.temperature = nn.Parameter(torch.ones(heads)) if qk_norm else None
        self.gate = nn.Parameter(torch.zeros(heads)) if self.searches and not self.joint else None

    def local(self) -> int:
        """Return the number of tokens before the segment in the local window."""
        return min(self.cache, self.memory_length)

    def covered(self) -> int:
        """Return the number of tokens before the segment whose keys and values are stored."""
        return self.memory_length if self.searches else self.local()

    def slots(self, read: int) -> Mapping[str, int]:
        """Return how many keys and values are stored: the memory and the part of the segment that has been read."""
        return dict.fromkeys(("keys", "values"), min(read, self.covered() + read % self.segment))

    def capacity(self) -> Mapping[str, int]:
        """Return the largest number of stored keys and values."""
        return dict.fromkeys(("keys", "values"), self.covered() + self.segment - 1)

    def row_shape(self, name: str) -> tuple[int, ...]:
        """Return the shape (G, D) of the keys or values of one token."""
        return self.kv_heads, self.head_dim

    def restricts_from(self) -> int:
        """Return the length at which a query does not select every key, or a segment later, if bidirectional."""
        if not self.causal:
            return self.segment + 1
        seen = self.local() + min(self.neighbours, self.covered() - self.local())
        return (seen // self.segment + 1) * self.segment + 1

    def compared(self, x: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """Return queries (B, H, N, D), keys and values (B, G, N, D), queries and keys normalised with ``qk_norm``."""
        q, k, v = self.project(x)
        if self.temperature is None:
            return q, k, v
        # Divided by √D later, so that scores begin with the range of those of queries and keys of norm √D.
        return F.normalize(q, dim=-1) * (self.head_dim * self.temperature[:, None, None]), F.normalize(k, dim=-1), v

    def read(self, x: Tensor, stored: Stored, start: int, context: Context) -> tuple[Tensor, Stored, Context]:
        """Attend segment by segment to the local window and to the selected keys of the memory."""
        q, new_k, new_v = self.compared(x)
        before = [stored[name].transpose(1, 2).to(new_k.dtype).detach() for name in ("keys", "values")]
        first, end = start - before[0].shape[2], start + x.shape[1]
        k, v = (torch.cat(pair, 2) for pair in zip(before, (new_k, new_v), strict=True))
        bounds = self.bounds(start, x.shape[1])
        ends = [start, *(stop for _, stop in bounds)]
        old = [Strip(each.detach(), first, ends) for each in (k, v)]
        new = [Strip(each, first, ends) for each in (k, v)]
        positions = self.positions_from(first, start, x.shape[1], context)
        outputs = []
        for (begin, stop), rows in zip(bounds, q.split([stop - begin for begin, stop in bounds], 2), strict=True):
            own = begin // self.segment * self.segment
            low, lowest = max(own - self.local(), 0), max(own - self.covered(), 0)
            if self.detach == "segment":
                keys, values = (strip.joined(other, low, own, stop) for strip, other in zip(old, new, strict=True))
            else:
                keys, values = (strip.window(low, stop) for strip in new)
            scores = self.scores(
                rows, keys, positions[..., begin - first : stop - first], positions[..., low - first : stop - first]
            )
            visible = self.visible(low, begin, stop, context)
            if lowest == low:
                outputs.append(self.combine(self.softmax(scores, visible), values))
                continue
            far_scores, far_values = self.selected(rows, *(strip.window(lowest, low) for strip in old))
            outputs.append(self.both(scores, visible, values, far_scores, far_values))
        y, context = self.finish(torch.cat(outputs, 2), q, new_k, new_v, context)
        kept = self.slots(end)["keys"]
        after = {
            name: each[:, :, each.shape[2] - kept :].transpose(1, 2) for name, each in (("keys", k), ("values", v))
        }
        return y, after, context

    def selected(self, q: Tensor, k: Tensor, v: Tensor) -> tuple[Tensor, Tensor]:
        """Return scores (B, H, r, K) and values of the keys that queries select among k and v (B, G, M, D).

        The values are (B, G, M, D) if all keys are selected, otherwise (B, H, r, K, D).
        """
        scale = self.head_dim**-0.5
        if k.shape[2] <= self.neighbours:
            return grouped(q * scale, k.mT), v
        ids = best_products(q.detach(), k, self.neighbours)
        sharing = self.heads // self.kv_heads
        keys, values = (_gathered(each.repeat_interleave(sharing, 1), ids) for each in (k, v))
        return (keys @ (q * scale)[..., None])[..., 0], values

    def both(self, scores: Tensor, visible: Tensor | None, v: Tensor, far_scores: Tensor, far_v: Tensor) -> Tensor:
        """Return the outputs (B, H, r, D) of attention to the local window and to the selected keys.

        Args:
            scores: Scores of the local window, (B, H, r, K).
            visible: Which keys of the local window are visible, as in ``softmax``.
            v: Values of the local window, (B, G, K, D).
            far_scores: Scores of the selected keys.
            far_v: Their values, as returned by ``selected``.
        """
        if self.gate is not None:
            gate = self.gate.sigmoid()[:, None, None]
            local = self.combine(self.softmax(scores, visible), v)
            return gate * self._of_memory(far_scores.softmax(-1), far_v) + (1 - gate) * local
        if visible is not None:
            scores = scores + additive_mask(visible, scores.dtype)
        weights = torch.cat((far_scores, scores), -1).softmax(-1)
        far, near = weights.split([far_scores.shape[-1], scores.shape[-1]], -1)
        return self._of_memory(far, far_v) + self.combine(near, v)

    def _of_memory(self, weights: Tensor, v: Tensor) -> Tensor:
        if v.dim() == 4:
            return self.combine(weights, v)
        return (F.dropout(weights, self.drop_rate).to(v.dtype)[..., None, :] @ v)[..., 0, :]


def _gathered(rows: Tensor, ids: Tensor) -> Tensor:
    """Return rows (B, H, M, D) at indices (B, H, r, K): (B, H, r, K, D)."""
    flat = ids.flatten(2)[..., None].expand(-1, -1, -1, rows.shape[-1])
    return rows.gather(2, flat).unflatten(2, ids.shape[2:])
