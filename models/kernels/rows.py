"""Attention for scores that are no inner products, by slices of queries that the backward pass recomputes."""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor
from torch.utils.checkpoint import checkpoint

from ..mixer import Padding
from .devices import uses_gpu_form
from .dropout import dropout as drop
from .named import attention_backend
from .softmax import QUERY_ROWS, additive_mask, grouped, lower

DEVICE_ROWS = 512  # queries per slice on accelerators, where launching an operation costs more than a cache saves
NUMBERS_AT_ONCE = 2**18  # in a slice of a short sequence; with fewer, launching an operation costs more than they do

Score = Callable[..., Tensor]
Use = Callable[[Tensor, int, Tensor | None], Tensor]
Weigh = Callable[[Tensor], Tensor]


def softmax(scores: Tensor) -> Tensor:
    """Return weights (..., M) that sum to one."""
    return scores.softmax(-1)


@attention_backend("rows")
def row_attention(
    queries: Tensor,
    v: Tensor,
    score: Score,
    *,
    per_query: tuple[Tensor, ...] = (),
    padding: Padding | None = None,
    causal: bool = False,
    dropout: float = 0.0,
    numbers: int = 1,
    weigh: Weigh = softmax,
) -> Tensor:
    """Compute softmax(scores) v for scores of any kind, for a slice of queries at a time.

    A query without visible keys yields zeros. O(N M) scores; memory O(M) per head, including the backward pass.

    Args:
        queries: Tensor (B, H, N, F) that scores depend on, position by position.
        v: Values (B, G, M, V), where G divides H.
        score: Function ``score(slice of queries, start, keys, *slices of per_query)`` that returns the scores
            (B or 1, H, r, keys) of the r queries from ``start`` on against the first ``keys`` keys. It is called again
            in the backward pass, so it must not use random numbers.
        per_query: Further tensors (..., N, F) that scores depend on, sliced like ``queries``.
        padding: Right padding of the keys.
        causal: Align the last query with the last key and mask later keys.
        dropout: Probability with which attention weights are dropped.
        numbers: Numbers per score that ``score`` computes; more of them make slices smaller.
        weigh: Function from scores to weights in place of softmax. It must return zero for the most negative finite
            scores, which are those of masked keys.

    Returns:
        The outputs (B, H, N, V).
    """

    def read(weights: Tensor, start: int, mask: Tensor | None) -> Tensor:
        o = grouped(drop(weights, dropout).to(v.dtype), v[:, :, : weights.shape[-1]])
        return o if mask is None else o * mask.any(-1, keepdim=True)

    return weights_by_rows(
        *(queries, v.shape[2], score, read),
        per_query=per_query,
        padding=padding,
        causal=causal,
        numbers=numbers,
        draws=dropout > 0,
        weigh=weigh,
    )


def weights_by_rows(
    queries: Tensor,
    keys: int,
    score: Score,
    use: Use,
    *,
    per_query: tuple[Tensor, ...] = (),
    padding: Padding | None = None,
    causal: bool = False,
    numbers: int = 1,
    draws: bool = False,
    weigh: Weigh = softmax,
) -> Tensor:
    """Apply ``use`` to slices of queries of the weights softmax(scores), and concatenate the results.

    Only one slice of weights is in memory at a time, as in ``row_attention``.

    Args:
        queries: Tensor (B, H, N, F) that scores depend on, position by position.
        keys: Number of keys M.
        score: Function that returns the scores of a slice of queries.
        use: Function ``use(weights, start, mask)`` from the weights (B, H, r, keys) of the queries from ``start`` on to
            the rows (B, X, r, Y) of the result. ``mask`` broadcasts to the weights, or is None if no key can be masked.
            It is called again in the backward pass.
        per_query: Further tensors (..., N, F) that scores depend on.
        padding: Right padding of the keys.
        causal: Align the last query with the last key and mask later keys.
        numbers: Numbers per score that ``score`` computes.
        draws: Whether ``use`` draws random numbers, which then are the same in the backward pass.
        weigh: Function from scores to weights.

    Returns:
        The concatenated results (B, X, N, Y).
    """
    length = queries.shape[2]
    rows = rows_at_once(queries, keys, numbers)
    # With right padding and a causal mask, real queries have no padded keys to attend to.
    mask = None if padding is None or (causal and length == keys) else padding.key_mask()
    recompute = torch.is_grad_enabled() and length > rows
    parts = []
    # split instead of slicing, whose backward pass writes a tensor of full size.
    for number, slices in enumerate(zip(*(each.split(rows, -2) for each in (queries, *per_query)), strict=True)):
        start = number * rows
        visible_count = start + slices[0].shape[2] + keys - length if causal else keys
        arguments = (
            visible_count,
            None if mask is None else mask[..., :visible_count],
            score,
            weigh,
            use,
            start,
            causal,
            *slices,
        )
        parts.append(
            checkpoint(_use_slice, *arguments, use_reentrant=False, preserve_rng_state=draws)
            if recompute
            else _use_slice(*arguments)
        )
    return torch.cat(parts, 2) if len(parts) > 1 else parts[0]


def rows_at_once(queries: Tensor, keys: int, numbers: int = 1) -> int:
    """Return the number of ``queries`` (B, H, N, F) per slice if each score takes ``numbers`` numbers to compute."""
    limit = QUERY_ROWS if queries.device.type == "cpu" and not uses_gpu_form(queries) else DEVICE_ROWS
    per_query = queries.shape[0] * queries.shape[1] * keys * numbers
    return max(1, limit // numbers, NUMBERS_AT_ONCE // max(per_query, 1))


def _use_slice(
    keys: int,
    mask: Tensor | None,
    score: Score,
    weigh: Weigh,
    use: Use,
    start: int,
    causal: bool,
    queries: Tensor,
    *per_query: Tensor,
) -> Tensor:
    scores = score(queries, start, keys, *per_query)
    if causal:
        # Built per slice: stored for the backward pass, the masks of all slices would take quadratic memory.
        earlier = lower(queries.shape[2], keys, queries.device)
        mask = earlier if mask is None else mask & earlier
    if mask is not None:
        scores = scores + additive_mask(mask, scores.dtype)
    return use(weigh(scores), start, mask)
