"""Exact chunked linear attention whose state decays per channel and is corrected by a rank-one product."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor

from .linear import full_precision
from .matrix_scan import matrix_scan

CHUNK = 32


def corrected_decay_attention(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    log_decay: Tensor,
    asked: Tensor,
    written: Tensor,
    *,
    state: Tensor | None = None,
    chunk: int = CHUNK,
) -> tuple[Tensor, Tensor]:
    """Compute linear attention whose state has decays per channel and rank-one corrections; also return the last state.

    o_t = S_tᵀ q_t with S_t = (Diag(exp log_decay_t) + written_t asked_tᵀ) S_(t−1) + k_t v_tᵀ.

    This is the recurrence of RWKV-7 (Peng et al. 2025, arXiv 2503.14456), reduced as the delta rule is
    (Yang et al. 2024, arXiv 2406.06484): in each chunk the products of the vectors ``asked`` with the state solve a
    triangular system, and the states of chunks follow a linear recurrence of matrices. Computed in single precision or
    better, regardless of autocast. With chunks of C positions, O(N (C + K) (C + K + V)) time and
    O(N (C + K + V + K (K + V) / C)) memory.

    Args:
        q: Queries (B, H, N, K).
        k: Keys (B, H, N, K).
        v: Values (B, H, N, V).
        log_decay: Logarithms of the decays (B, H, N, K), between −1 and 0. Within a chunk decays are computed as
            quotients, so faster decays would overflow single precision.
        asked: Vectors (B, H, N, K) that are multiplied with the previous state.
        written: Vectors (B, H, N, K) along which those products are added to the state.
        state: Initial state (B, H, K, V), by default zeros.
        chunk: Positions per chunk.

    Returns:
        The outputs (B, H, N, V) and the last state (B, H, K, V). A position whose k, log_decay and written are zero
        leaves the state unchanged.
    """
    batch, heads, length, _ = q.shape
    chunk = min(chunk, length)
    with full_precision(q):
        q, k, v, log_decay, asked, written = (_chunks(x, chunk) for x in (q, k, v, log_decay, asked, written))
        if state is None:
            state = q.new_zeros(batch, heads, q.shape[-1], v.shape[-1])
        elapsed = log_decay.cumsum(2)
        elapsed_before, total = elapsed - log_decay, elapsed[:, :, -1:]
        # Measuring decays from the middle of the chunk keeps both factors of a quotient near one.
        middle = total.detach() / 2
        readers = torch.cat((asked * (elapsed_before - middle).exp(), q * (elapsed - middle).exp()), 2)
        sources = torch.cat((written, k), 2) * (middle - elapsed).exp().repeat(1, 1, 2, 1)
        asked_scores, query_scores = (readers @ sources.mT).chunk(2, 2)
        asked_by_written, asked_by_keys = _lower_triangles(asked_scores, -1)
        query_by_written, query_by_keys = _lower_triangles(query_scores, 0)
        # Products of asked with the state: the part from this chunk, and the coefficients of the state before it.
        right_side = torch.cat((asked_by_keys @ v, asked * elapsed_before.exp()), -1)
        solved = torch.linalg.solve_triangular(-asked_by_written, right_side, upper=False, unitriangular=True)
        from_chunk, from_state = solved.split((v.shape[-1], q.shape[-1]), -1)
        to_end = (total - elapsed).exp()
        written_at_end = (written * to_end).mT
        factors = torch.diag_embed(total[:, :, 0].exp()) + written_at_end @ from_state
        states = matrix_scan(
            factors, written_at_end @ from_chunk + (k * to_end).mT @ v, state.flatten(0, 1).to(q.dtype)
        )
        initial_states = torch.cat((state.flatten(0, 1)[None].to(q.dtype), states[:-1]))
        state_products = from_chunk + from_state @ initial_states
        o = query_by_written @ state_products + query_by_keys @ v + (q * elapsed.exp()) @ initial_states
    o = o.transpose(0, 1).flatten(1, 2)[:, :length]
    return o.unflatten(0, (batch, heads)), states[-1].unflatten(0, (batch, heads))


def _chunks(x: Tensor, chunk: int) -> Tensor:
    """Fold (B, H, N, D) to (chunks, B·H, C, D), zero-padded at the end, in single precision or better."""
    x = F.pad(x.float() if x.dtype.itemsize < 4 else x, (0, 0, 0, -x.shape[2] % chunk))
    return x.flatten(0, 1).unflatten(1, (-1, chunk)).transpose(0, 1)


def _lower_triangles(products: Tensor, diagonal: int) -> tuple[Tensor, Tensor]:
    """Return both halves (..., C, C) of products (..., C, 2 C) as lower triangles up to ``diagonal``."""
    first, second = products.chunk(2, -1)
    return first.tril(diagonal), second.tril(diagonal)
