"""Attention whose scores are no inner product: by slices of queries, each computed again for its gradient."""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor
from torch.utils.checkpoint import checkpoint

from ..mixer import Padding
from .dropout import dropout as drop
from .named import attention_backend
from .softmax import QUERY_ROWS, grouped, hiding, lower

DEVICE_ROWS = 512  # queries at once where starting an operation costs more than a slice fills a cache
NUMBERS_AT_ONCE = 2**18  # in slices of short sequences: starting an operation on fewer costs more than they do

Score = Callable[..., Tensor]
Use = Callable[[Tensor, int, Tensor | None], Tensor]
Weigh = Callable[[Tensor], Tensor]


def softmax(scores: Tensor) -> Tensor:
    """Weights (..., M) that sum to one."""
    return scores.softmax(-1)


@attention_backend("rows")
def row_attention(
    queries: Tensor,
    v: Tensor,
    score: Score,
    *,
    beside: tuple[Tensor, ...] = (),
    padding: Padding | None = None,
    causal: bool = False,
    dropout: float = 0.0,
    numbers: int = 1,
    weigh: Weigh = softmax,
) -> Tensor:
    """softmax(scores) v for scores of any kind, those of some queries at once.

    queries (B, H, N, F) hold what scores depend on, row by row, and so do tensors (..., N, F) ``beside`` them; v
    (B, G, M, V), with G dividing H; to (B, H, N, V). ``score(slice of queries, start, keys, *slices beside)`` returns
    the scores (B or 1, H, r, keys) of the queries from ``start`` on against the first ``keys`` keys; it runs again in
    the backward pass, so it must not draw. ``padding`` belongs to the keys and is right-padded; ``causal`` aligns the
    last query with the last key. A query that sees no key yields zeros. Each score takes so many ``numbers`` to
    compute, which decides how many queries at once. ``weigh`` may stand in place of softmax, and must make nothing of
    scores that are the least of their type, as those of hidden keys are.
    O(N M) scores; memory O(M) per head, backward too.
    """

    def read(weights: Tensor, start: int, mask: Tensor | None) -> Tensor:
        o = grouped(drop(weights, dropout).to(v.dtype), v[:, :, : weights.shape[-1]])
        return o if mask is None else o * mask.any(-1, keepdim=True)

    return weights_by_rows(
        *(queries, v.shape[2], score, read),
        beside=beside,
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
    beside: tuple[Tensor, ...] = (),
    padding: Padding | None = None,
    causal: bool = False,
    numbers: int = 1,
    draws: bool = False,
    weigh: Weigh = softmax,
) -> Tensor:
    """What ``use`` makes of softmax(scores), some rows of it at once; the rest is as ``row_attention`` has it.

    ``use(weights (B, H, r, keys), start, mask)`` gives rows (B, X, r, Y) of the result (B, X, N, Y), from the weights
    of queries from ``start`` on; ``mask`` broadcasts to these where keys may be hidden, else it is None. It runs again
    in the backward pass, with the same random numbers where it ``draws``.
    """
    length = queries.shape[2]
    rows = rows_at_once(queries, keys, numbers)
    # A real query of a right-padded causal row sees real keys only.
    mask = None if padding is None or (causal and length == keys) else padding.key_mask()
    again = torch.is_grad_enabled() and length > rows
    parts = []
    # split, not slices: the backward pass of a slice writes a tensor of full size.
    for number, some in enumerate(zip(*(each.split(rows, -2) for each in (queries, *beside)), strict=True)):
        start = number * rows
        last = start + some[0].shape[2] + keys - length if causal else keys
        part = (last, None if mask is None else mask[..., :last], score, weigh, use, start, causal, *some)
        parts.append(checkpoint(_use, *part, use_reentrant=False, preserve_rng_state=draws) if again else _use(*part))
    return torch.cat(parts, 2) if len(parts) > 1 else parts[0]


def rows_at_once(queries: Tensor, keys: int, numbers: int = 1) -> int:
    """How many of ``queries`` (B, H, N, F) a slice has, where each score takes so many ``numbers`` to compute."""
    most = QUERY_ROWS if queries.device.type == "cpu" else DEVICE_ROWS
    in_a_row = queries.shape[0] * queries.shape[1] * keys * numbers
    return max(1, most // numbers, NUMBERS_AT_ONCE // max(in_a_row, 1))


def _use(
    keys: int,
    mask: Tensor | None,
    score: Score,
    weigh: Weigh,
    use: Use,
    start: int,
    causal: bool,
    queries: Tensor,
    *beside: Tensor,
) -> Tensor:
    scores = score(queries, start, keys, *beside)
    if causal:
        # Made here: kept for the backward pass, the triangles of all slices would be quadratic.
        earlier = lower(queries.shape[2], keys, queries.device)
        mask = earlier if mask is None else mask & earlier
    if mask is not None:
        scores = scores + hiding(mask, scores.dtype)
    return use(weigh(scores), start, mask)
