"""Softmax attention in chunks of queries, with scores that a position or a prior may change."""

from __future__ import annotations

from collections.abc import Callable

from torch import Tensor

from ..kernels.biased import biased_attention
from ..kernels.rows import Score, Use, Weigh, row_attention, softmax, weights_by_rows
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
    per_query: tuple[Tensor, ...] = (),
    weigh: Weigh = softmax,
) -> Tensor:
    """Compute softmax attention with scores from ``pairs`` and the hooks of the mixer's position.

    Scores are computed in chunks of queries and recomputed in the backward pass. O(N^2) time, O(N) memory.

    Args:
        mixer: Mixer that provides the position, the direction and the dropout rate.
        q: Queries (B, H, N, D), which are also passed to the position.
        k: Keys (B, G, N, D), which are also passed to the position.
        v: Values (B, G, N, V), with G dividing H.
        context: Context with the padding and the positions of the tokens.
        pairs: Function of r queries and M keys that returns their scaled scores (B, H, r, M).
        compared: Queries and keys that are passed to ``pairs``, by default q and k.
        numbers: Number of elements that ``pairs`` computes for each score, as in ``row_attention``.
        prior: Function ``prior(start, queries, keys, *slices)`` whose result is added last to the scores of ``queries``
            queries from index ``start`` on and the first ``keys`` keys; it must broadcast to (B, H, r, M).
        per_query: Additional tensors (..., N, F) that are split like the queries and passed to ``prior`` as slices.
        weigh: Function from scores to weights in place of softmax, as in ``row_attention``.

    Returns:
        The attention output (B, H, N, V).
    """
    return row_attention(
        q,
        v,
        _score(mixer, k, context, pairs, compared, prior),
        per_query=(*(() if compared is None else compared[:1]), *per_query),
        padding=context.padding,
        causal=mixer.causal,
        dropout=mixer.drop_rate,
        numbers=numbers,
        weigh=weigh,
    )


def attend_with_added(
    mixer: HeadMixer,
    q: Tensor,
    k: Tensor,
    v: Tensor,
    context: Context,
    compared: tuple[Tensor, Tensor] | None,
    scale: float,
    prior: Prior | None = None,
    per_query: tuple[Tensor, ...] = (),
    numbers: int = 1,
) -> Tensor:
    """Compute ``attend_by_rows`` for scores that are inner products of ``compared``, times ``scale``, plus terms.

    This is the form for GPUs, which requires that the position has no ``weight`` hook. Arguments as in
    ``attend_by_rows``, with ``prior`` or a position that adds a term.
    """
    position, places = mixer.position, context.positions
    hooks = frozenset() if position is None else position.hooks

    def added(start: int, queries: int, keys: int, own: Tensor, *slices: Tensor) -> Tensor:
        terms = [] if prior is None else [prior(start, queries, keys, *slices)]
        own_places, key_places = places[..., start : start + queries], places[..., :keys]
        if position is not None and "scores" in hooks:
            terms.append(position.scores(own, k[:, :, :keys], own_places, key_places))
        if position is not None and "bias" in hooks:
            terms.append(position.bias(own_places, key_places))
        total = terms[0]
        for term in terms[1:]:
            total = total + term
        return total

    queries, keys = (q, k) if compared is None else compared
    return biased_attention(
        *(queries, keys, v, added),
        per_query=(q, *per_query),
        padding=context.padding,
        causal=mixer.causal,
        scale=scale,
        dropout=mixer.drop_rate,
        numbers=numbers,
    )


def adds_terms(mixer: HeadMixer) -> bool:
    """Return whether the position of the mixer changes scores by additions only."""
    return mixer.position is None or "weight" not in mixer.position.hooks


def weigh_by_rows(
    mixer: HeadMixer,
    q: Tensor,
    k: Tensor,
    context: Context,
    pairs: Callable[[Tensor, Tensor], Tensor],
    use: Use,
    compared: tuple[Tensor, Tensor] | None = None,
    numbers: int = 1,
    heads: int | None = None,
    weigh: Weigh = softmax,
) -> Tensor:
    """Apply ``use`` to the weights of ``attend_by_rows``, without dropout, as ``weights_by_rows`` does.

    Only the weights of the first ``heads`` heads are computed if the position does not change scores; ``pairs`` must
    treat all heads alike.
    """
    if heads is not None and (mixer.position is None or mixer.position.hooks <= {"embed", "rotate"}):
        q, k = _first_heads(q, k, heads)
        compared = None if compared is None else _first_heads(*compared, heads)
    return weights_by_rows(
        q,
        k.shape[2],
        _score(mixer, k, context, pairs, compared),
        use,
        per_query=() if compared is None else compared[:1],
        padding=context.padding,
        causal=mixer.causal,
        numbers=numbers,
        weigh=weigh,
    )


def _first_heads(q: Tensor, k: Tensor, heads: int) -> tuple[Tensor, Tensor]:
    """Return the first ``heads`` heads of q (B, H, N, D) and k (B, G, M, D), with G dividing H."""
    return q[:, :heads], k.repeat_interleave(q.shape[1] // k.shape[1], 1)[:, :heads]


def _score(
    mixer: HeadMixer,
    k: Tensor,
    context: Context,
    pairs: Callable[[Tensor, Tensor], Tensor],
    compared: tuple[Tensor, Tensor] | None,
    prior: Prior | None = None,
) -> Score:
    """Return the score function for ``row_attention`` and ``weights_by_rows``."""
    position, places = mixer.position, context.positions
    keys = k if compared is None else compared[1]

    def score(own: Tensor, start: int, count: int, *slices: Tensor) -> Tensor:
        queries, extra = (own, slices) if compared is None else (slices[0], slices[1:])
        scores = pairs(queries, keys[:, :, :count])
        if position is not None:
            query_places = places[..., start : start + own.shape[2]]
            scores = position.complete(scores, own, k[:, :, :count], query_places, places[..., :count])
        return scores if prior is None else scores + prior(start, own.shape[2], count, *extra)

    return score
