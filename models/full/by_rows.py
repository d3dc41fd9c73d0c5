"""Softmax attention by rows of scores, with whatever a position does to them."""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor

from ..kernels.rows import row_attention
from ..mixer import Context, HeadMixer


def attend_by_rows(
    mixer: HeadMixer,
    q: Tensor,
    k: Tensor,
    v: Tensor,
    context: Context,
    pairs: Callable[[Tensor, Tensor], Tensor],
    compared: tuple[Tensor, Tensor] | None = None,
    rows: int | None = None,
) -> Tensor:
    """Attention by ``pairs(queries, keys)``, scaled scores (B, H, r, M), and the hooks of the mixer's position.

    Positions see q (B, H, N, D) and k (B, G, N, D). ``compared`` are queries and keys as ``pairs`` takes them, by
    default q and k themselves. ``rows`` queries at once, as in ``row_attention``. O(N^2) time, O(N) memory.
    """
    position, places = mixer.position, context.positions
    keys = k if compared is None else compared[1]
    queries = q if compared is None else torch.cat((q, compared[0]), -1)

    def score(some: Tensor, start: int, count: int) -> Tensor:
        own, asked = (some, some) if compared is None else some.tensor_split([q.shape[-1]], -1)
        scores = pairs(asked, keys[:, :, :count])
        if position is None:
            return scores
        here = places[..., start : start + some.shape[2]]
        return position.complete(scores, own, k[:, :, :count], here, places[..., :count])

    return row_attention(
        queries, v, score, padding=context.padding, causal=mixer.causal, dropout=mixer.drop_rate, rows=rows
    )
