"""Softmax attention by rows of scores, with whatever a position or a prior does to them."""

from __future__ import annotations

from collections.abc import Callable

from torch import Tensor

from ..kernels.rows import Score, Use, row_attention, weights_by_rows
from ..mixer import Context, HeadMixer

Prior = Callable[..., Tensor]


def attend_by_rows(
    mixer: HeadMixer,
    q: Tensor,
    k: Tensor,
    v: Tensor,
    context: Context,
    pairs: Callable[[Tensor, Tensor], Tensor],
    compared: tuple[Tensor, Tensor] | None = None,
    numbers: int = 1,
    prior: Prior | None = None,
    beside: tuple[Tensor, ...] = (),
) -> Tensor:
    """Attention by ``pairs(queries, keys)``, scaled scores (B, H, r, M), and the hooks of the mixer's position.

    Positions see q (B, H, N, D) and k (B, G, N, D). ``compared`` are queries and keys as ``pairs`` takes them, by
    default q and k themselves. ``prior(start, queries, keys, *slices of beside)`` is added at last: what so many
    queries from ``start`` on think of the first ``keys`` keys, broadcasting to (B, H, r, M), with tensors (..., N, F)
    ``beside`` split as queries are. ``numbers`` is as in ``row_attention``. O(N^2) time, O(N) memory.
    """
    return row_attention(
        q,
        v,
        _score(mixer, k, context, pairs, compared, prior),
        beside=(*(() if compared is None else compared[:1]), *beside),
        padding=context.padding,
        causal=mixer.causal,
        dropout=mixer.drop_rate,
        numbers=numbers,
    )


def weigh_by_rows(
    mixer: HeadMixer,
    q: Tensor,
    k: Tensor,
    context: Context,
    pairs: Callable[[Tensor, Tensor], Tensor],
    use: Use,
    compared: tuple[Tensor, Tensor] | None = None,
    numbers: int = 1,
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
        numbers=numbers,
    )


def _score(
    mixer: HeadMixer,
    k: Tensor,
    context: Context,
    pairs: Callable[[Tensor, Tensor], Tensor],
    compared: tuple[Tensor, Tensor] | None,
    prior: Prior | None = None,
) -> Score:
    position, places = mixer.position, context.positions
    keys = k if compared is None else compared[1]

    def score(own: Tensor, start: int, count: int, *slices: Tensor) -> Tensor:
        asked, given = (own, slices) if compared is None else (slices[0], slices[1:])
        scores = pairs(asked, keys[:, :, :count])
        if position is not None:
            here = places[..., start : start + own.shape[2]]
            scores = position.complete(scores, own, k[:, :, :count], here, places[..., :count])
        return scores if prior is None else scores + prior(start, own.shape[2], count, *given)

    return score
