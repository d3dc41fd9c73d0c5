"""Softmax attention by rows of scores, with whatever a position does to them."""

from __future__ import annotations

from collections.abc import Callable

from torch import Tensor

from ..kernels.rows import Score, Use, row_attention, weights_by_rows
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
    return row_attention(
        q,
        v,
        _score(mixer, k, context, pairs, compared),
        beside=() if compared is None else compared[:1],
        padding=context.padding,
        causal=mixer.causal,
        dropout=mixer.drop_rate,
        rows=rows,
    )


def weigh_by_rows(
    mixer: HeadMixer,
    q: Tensor,
    k: Tensor,
    context: Context,
    pairs: Callable[[Tensor, Tensor], Tensor],
    use: Use,
    compared: tuple[Tensor, Tensor] | None = None,
    rows: int | None = None,
) -> Tensor:
    """What ``use`` makes of the weights of ``attend_by_rows``, none of them dropped, as in ``weights_by_rows``."""
    return weights_by_rows(
        q,
        k.shape[2],
        _score(mixer, k, context, pairs, compared),
        use,
        beside=() if compared is None else compared[:1],
        padding=context.padding,
        causal=mixer.causal,
        rows=rows,
    )


def _score(
    mixer: HeadMixer,
    k: Tensor,
    context: Context,
    pairs: Callable[[Tensor, Tensor], Tensor],
    compared: tuple[Tensor, Tensor] | None,
) -> Score:
    position, places = mixer.position, context.positions
    keys = k if compared is None else compared[1]

    def score(own: Tensor, start: int, count: int, asked: Tensor | None = None) -> Tensor:
        scores = pairs(own if asked is None else asked, keys[:, :, :count])
        if position is None:
            return scores
        here = places[..., start : start + own.shape[2]]
        return position.complete(scores, own, k[:, :, :count], here, places[..., :count])

    return score
