"""Linear attention whose state fades by channels and is corrected by a product of two vectors: exact, by chunks."""

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
    """o_t = S_tᵀ q_t with S_t = (Diag(exp log_decay_t) + written_t asked_tᵀ) S_(t−1) + k_t v_tᵀ; and the last state.

    q, k, log_decay, asked, written (B, H, N, K), v (B, H, N, V) to o (B, H, N, V) and S (B, H, K, V), which ``state``
    begins from, by default zeros. ``log_decay`` lies between −1 and 0: what fades faster would overflow single
    precision, for inside a chunk it is taken as a quotient. A row whose k, log_decay and written are zero changes
    nothing.

    The recurrence of RWKV-7 (Peng et al. 2025, arXiv 2503.14456), reduced as the delta rule is (Yang et al. 2024, arXiv
    2406.06484): what rows ask of the state is a triangular system in each chunk, and chunks are a recurrence of
    matrices. Single precision or better whatever autocast says. With chunks of C rows O(N (C + K) (C + K + V)) time,
    O(N (C + K + V + K (K + V) / C)) memory.
    """
    batch, heads, length, _ = q.shape
    chunk = min(chunk, length)
    with full_precision(q):
        q, k, v, log_decay, asked, written = (_chunks(x, chunk) for x in (q, k, v, log_decay, asked, written))
        if state is None:
            state = q.new_zeros(batch, heads, q.shape[-1], v.shape[-1])
        elapsed = log_decay.cumsum(2)
        before, whole = elapsed - log_decay, elapsed[:, :, -1:]
        # Both factors of a quotient stay near one where decays are counted from the middle.
        middle = whole.detach() / 2
        readers = torch.cat((asked * (before - middle).exp(), q * (elapsed - middle).exp()), 2)
        sources = torch.cat((written, k), 2) * (middle - elapsed).exp().repeat(1, 1, 2, 1)
        asking, reading = (readers @ sources.mT).chunk(2, 2)
        of_written, of_values = _earlier(asking, -1)
        read_written, read_values = _earlier(reading, 0)
        # What rows ask of the state: their own part, and how much of it they ask of the state before the chunk.
        wanted = torch.cat((of_values @ v, asked * before.exp()), -1)
        solved = torch.linalg.solve_triangular(-of_written, wanted, upper=False, unitriangular=True)
        own, of_state = solved.split((v.shape[-1], q.shape[-1]), -1)
        leaving = (whole - elapsed).exp()
        leaving_written = (written * leaving).mT
        factors = torch.diag_embed(whole[:, :, 0].exp()) + leaving_written @ of_state
        states = matrix_scan(factors, leaving_written @ own + (k * leaving).mT @ v, state.flatten(0, 1).to(q.dtype))
        initial_states = torch.cat((state.flatten(0, 1)[None].to(q.dtype), states[:-1]))
        found = own + of_state @ initial_states
        o = read_written @ found + read_values @ v + (q * elapsed.exp()) @ initial_states
    o = o.transpose(0, 1).flatten(1, 2)[:, :length]
    return o.unflatten(0, (batch, heads)), states[-1].unflatten(0, (batch, heads))


def _chunks(x: Tensor, chunk: int) -> Tensor:
    """(B, H, N, D) to (chunks, B·H, C, D), in single precision or better, with zeros behind the end."""
    x = F.pad(x.float() if x.dtype.itemsize < 4 else x, (0, 0, 0, -x.shape[2] % chunk))
    return x.flatten(0, 1).unflatten(1, (-1, chunk)).transpose(0, 1)


def _earlier(products: Tensor, diagonal: int) -> tuple[Tensor, Tensor]:
    """Both halves (..., C, C) of products (..., C, 2 C) without those of later rows."""
    first, second = products.chunk(2, -1)
    return first.tril(diagonal), second.tril(diagonal)
