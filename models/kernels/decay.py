"""Exact chunked linear attention whose state decays, optionally corrected by the delta rule."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor

from .linear import full_precision
from .matrix_scan import matrix_scan
from .scan import scan

CHUNK = 64
PAIRWISE_ROWS = 4  # positions among which decays per channel are applied pair by pair


def decay_attention(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    log_decay: Tensor,
    *,
    strength: Tensor | None = None,
    state: Tensor | None = None,
    chunk: int = CHUNK,
) -> tuple[Tensor, Tensor]:
    """Compute linear attention with a decaying state; also return the last state.

    o_t = S_tᵀ q_t with S_t = S' + k_t v_tᵀ and S' = exp(log_decay_t) S_(t−1). With ``strength`` β the delta rule
    replaces the value by its difference from the value stored for the key: S_t = S' + β_t k_t (v_t − S'ᵀ k_t)ᵀ.

    Logarithms are only summed within a chunk and no factor exceeds one, so the result is exact for any decay. Sums are
    computed in single precision or better, regardless of autocast. With chunks of C positions, O(N (C + K) V) time and
    O(N (K + V + C + K V / C)) memory; the delta rule (Yang et al. 2024, arXiv 2406.06484) takes O(N C (C + K + V)) time
    more.

    Args:
        q: Queries (B, H, N, K).
        k: Keys (B, H, N, K).
        v: Values (B, H, N, V).
        log_decay: Logarithms of the decays, at most zero: one per position (B, H, N), or one per channel of the key
            (B, H, N, K).
        strength: Step sizes β of the delta rule (B, H, N); requires one decay per position.
        state: Initial state (B, H, K, V), by default zeros.
        chunk: Positions per chunk, a power of two.

    Returns:
        The outputs (B, H, N, V) and the last state (B, H, K, V). A position whose k, log_decay and strength are zero
        leaves the state unchanged.

    Raises:
        ValueError: If ``chunk`` is not a power of two, or if ``strength`` is given with one decay per channel.
    """
    length = q.shape[2]
    if chunk & (chunk - 1):
        raise ValueError(f"chunk={chunk} is not a power of two")
    chunk = min(chunk, 1 << (length - 1).bit_length())
    with full_precision(q):
        q, k, v, log_decay = (_in_chunks(x, chunk) for x in (q, k, v, log_decay))
        elapsed = log_decay.cumsum(3)
        by_channel = elapsed.dim() == q.dim()
        channel_elapsed = elapsed if by_channel else elapsed[..., None]
        total = channel_elapsed[:, :, :, -1]
        decayed_q = q * channel_elapsed.exp()
        keys_at_end = k * (total[:, :, :, None] - channel_elapsed).exp()
        if state is None:
            state = q.new_zeros(*q.shape[:1], q.shape[2], q.shape[-1], v.shape[-1])
        decays = None if by_channel else _pairwise_decays(elapsed)
        if strength is None:
            added = keys_at_end.mT @ v
            states = scan(total.exp()[..., None], added, state)
            before = torch.cat((state[:, None], states[:, :-1]), 1)
        else:
            if decays is None:
                raise ValueError("strength requires log_decay of shape (B, H, N)")
            strength = _in_chunks(strength, chunk)[..., None]
            # From here on v is what remains to be added of each value after the earlier positions of its chunk.
            v, reading = _solve_corrections(k, v, elapsed, decays, strength)
            states, before = _corrected_states(keys_at_end, v, reading, total, state)
            v = v - reading @ before
        within_chunk = _channel_decayed_sums(q, k, v, elapsed) if decays is None else (q @ k.mT * decays) @ v
        o = within_chunk + decayed_q @ before
    return o.transpose(1, 2).flatten(2, 3)[:, :, :length], states[:, -1]


def _in_chunks(x: Tensor, chunk: int) -> Tensor:
    """Fold (B, H, N, ...) to (B, chunks, H, C, ...), zero-padded at the end, in single precision or better."""
    rest = -x.shape[2] % chunk
    x = x.float() if x.dtype.itemsize < 4 else x
    x = F.pad(x, (*[0, 0] * (x.dim() - 3), 0, rest)) if rest else x
    return x.unflatten(2, (-1, chunk)).transpose(1, 2)


def _pairwise_decays(elapsed: Tensor) -> Tensor:
    """Return the decays (..., C, C) from position j to position i of a chunk, zero for j > i."""
    lower = torch.ones(elapsed.shape[-1], elapsed.shape[-1], dtype=torch.bool, device=elapsed.device).tril()
    return (elapsed[..., :, None] - elapsed[..., None, :]).masked_fill(~lower, -torch.inf).exp()


def _channel_decayed_sums(q: Tensor, k: Tensor, v: Tensor, elapsed: Tensor) -> Tensor:
    """Return Σ_{j ≤ i} Σ_d q_id k_jd exp(elapsed_id − elapsed_jd) v_j within chunks.

    Chunks are halved recursively. The contribution of the first half to the second is a matrix product, since its decay
    factors into the decay up to the boundary and the decay from there on, neither of which exceeds one.
    """
    size = q.shape[3]
    if size <= PAIRWISE_ROWS:
        lower = torch.ones(size, size, dtype=torch.bool, device=q.device).tril()[..., None]
        decays = (elapsed[..., :, None, :] - elapsed[..., None, :, :]).masked_fill(~lower, -torch.inf).exp()
        return torch.einsum("...id,...jd,...ijd->...ij", q, k, decays) @ v
    halves = [x.unflatten(3, (2, -1)) for x in (q, k, v, elapsed)]
    (_, late_q), (early_k, _), (early_v, _), (early, late) = (x.unbind(3) for x in halves)
    boundary = early[..., -1:, :]
    crossing = (late_q * (late - boundary).exp()) @ (early_k * (boundary - early).exp()).mT @ early_v
    # The recursion treats the halves as chunks.
    within = _channel_decayed_sums(*(x.flatten(2, 3) for x in halves)).unflatten(2, (-1, 2))
    return torch.cat((within[:, :, :, 0], within[:, :, :, 1] + crossing), 3)


def _solve_corrections(
    k: Tensor, v: Tensor, elapsed: Tensor, decays: Tensor, strength: Tensor
) -> tuple[Tensor, Tensor]:
    """Return the rows that a chunk adds to a zero state (..., C, V), and the weights with which it reads the state.

    Row i adds u_i = β_i (v_i − Σ_{j < i} (k_i · k_j) decays_ij u_j − exp(elapsed_i) Sᵀ k_i) for the state S before the
    chunk, which is a triangular system. The second result (..., C, K) is multiplied with S and subtracted from the
    first.
    """
    system = (strength * decays * (k @ k.mT)).tril(-1)
    right_side = torch.cat((strength * v, strength * elapsed.exp()[..., None] * k), -1)
    solved = torch.linalg.solve_triangular(system, right_side, upper=False, unitriangular=True)
    return solved[..., : v.shape[-1]], solved[..., v.shape[-1] :]


def _corrected_states(
    keys_at_end: Tensor, added: Tensor, reading: Tensor, total: Tensor, state: Tensor
) -> tuple[Tensor, Tensor]:
    """Return the states after and before each chunk.

    The state S becomes (exp(total) − keys_at_endᵀ reading) S + keys_at_endᵀ added.
    """
    factors = torch.diag_embed(total.exp().expand(*total.shape[:-1], keys_at_end.shape[-1])) - keys_at_end.mT @ reading
    inputs = keys_at_end.mT @ added
    shape = inputs.shape
    factors, inputs = (x.transpose(0, 1).flatten(1, 2).contiguous() for x in (factors, inputs))
    states = matrix_scan(factors, inputs, state.flatten(0, 1))
    states = states.unflatten(1, (shape[0], shape[2])).transpose(0, 1)
    return states, torch.cat((state[:, None], states[:, :-1]), 1)
