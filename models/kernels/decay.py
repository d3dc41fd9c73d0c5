"""Linear attention whose state fades, and may be corrected before it is added to: exact, by chunks."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor

from .linear import full_precision
from .matrix_scan import matrix_scan
from .scan import scan

CHUNK = 64
SINGLY = 4  # rows among which vector decays are weighed pair by pair


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
    """o_t = S_tᵀ q_t, with S_t = S' + k_t v_tᵀ and S' = exp(log_decay_t) S_(t−1); and the last state.

    q, k (B, H, N, K), v (B, H, N, V) to o (B, H, N, V) and S (B, H, K, V), which ``state`` begins from, by default
    zeros. ``log_decay`` is at most zero, a number (B, H, N) for each step, or one for each channel of the key
    (B, H, N, K). With ``strength`` β (B, H, N), which wants decays (B, H, N), the delta rule: a key's own value is
    corrected, S_t = S' + β_t k_t (v_t − S'ᵀ k_t)ᵀ. A row at which k, log_decay and strength are zero changes nothing.

    Sums of logarithms stay inside a chunk, and no weight above one is ever made, so that any decay is exact. Sums are
    kept in single precision or better whatever autocast says. O(N (C + K) V) time, O(N (K + V + C + K V / C)) memory
    with chunks of C rows, a power of two; the delta rule (Yang et al. 2024, arXiv 2406.06484) takes O(N C (C + K + V))
    time more.
    """
    length = q.shape[2]
    if chunk & (chunk - 1):
        raise ValueError(f"chunk={chunk} is no power of two")
    chunk = min(chunk, 1 << (length - 1).bit_length())
    with full_precision(q):
        q, k, v, log_decay = (_in_chunks(x, chunk) for x in (q, k, v, log_decay))
        elapsed = log_decay.cumsum(3)
        by_channel = elapsed.dim() == q.dim()
        faded = elapsed if by_channel else elapsed[..., None]
        whole = faded[:, :, :, -1]
        readers = q * faded.exp()
        leaving = k * (whole[:, :, :, None] - faded).exp()
        if state is None:
            state = q.new_zeros(*q.shape[:1], q.shape[2], q.shape[-1], v.shape[-1])
        fading = None if by_channel else _fading(elapsed)
        if strength is None:
            added = leaving.mT @ v
            states = scan(whole.exp()[..., None], added, state)
            before = torch.cat((state[:, None], states[:, :-1]), 1)
        else:
            if fading is None:
                raise ValueError("strength wants decays (B, H, N)")
            strength = _in_chunks(strength, chunk)[..., None]
            # v becomes what is left to add of each value once all before it in the chunk have been added.
            v, reading = _corrections(k, v, elapsed, fading, strength)
            states, before = _corrected_states(leaving, v, reading, whole, state)
            v = v - reading @ before
        inside = _weighed(q, k, v, elapsed) if fading is None else (q @ k.mT * fading) @ v
        o = inside + readers @ before
    return o.transpose(1, 2).flatten(2, 3)[:, :, :length], states[:, -1]


def _in_chunks(x: Tensor, chunk: int) -> Tensor:
    """(B, H, N, ...) to (B, chunks, H, C, ...), in single precision or better, with zeros behind the end."""
    rest = -x.shape[2] % chunk
    x = x.float() if x.dtype.itemsize < 4 else x
    x = F.pad(x, (*[0, 0] * (x.dim() - 3), 0, rest)) if rest else x
    return x.unflatten(2, (-1, chunk)).transpose(1, 2)


def _fading(elapsed: Tensor) -> Tensor:
    """What is left at row i of what row j ≤ i added (..., C, C)."""
    lower = torch.ones(elapsed.shape[-1], elapsed.shape[-1], dtype=torch.bool, device=elapsed.device).tril()
    return (elapsed[..., :, None] - elapsed[..., None, :]).masked_fill(~lower, -torch.inf).exp()


def _weighed(q: Tensor, k: Tensor, v: Tensor, elapsed: Tensor) -> Tensor:
    """Σ_{j ≤ i} Σ_d q_id k_jd exp(elapsed_id − elapsed_jd) v_j within chunks.

    Chunks are halved again and again. What the second half reads of the first is a product of matrices, for it fades
    up to where they meet and from there on, and neither factor is above one.
    """
    size = q.shape[3]
    if size <= SINGLY:
        lower = torch.ones(size, size, dtype=torch.bool, device=q.device).tril()[..., None]
        fading = (elapsed[..., :, None, :] - elapsed[..., None, :, :]).masked_fill(~lower, -torch.inf).exp()
        return torch.einsum("...id,...jd,...ijd->...ij", q, k, fading) @ v
    halves = [x.unflatten(3, (2, -1)) for x in (q, k, v, elapsed)]
    (_, late_q), (early_k, _), (early_v, _), (early, late) = (x.unbind(3) for x in halves)
    meeting = early[..., -1:, :]
    crossing = (late_q * (late - meeting).exp()) @ (early_k * (meeting - early).exp()).mT @ early_v
    # The halves stand beside each other where chunks did.
    within = _weighed(*(x.flatten(2, 3) for x in halves)).unflatten(2, (-1, 2))
    return torch.cat((within[:, :, :, 0], within[:, :, :, 1] + crossing), 3)


def _corrections(k: Tensor, v: Tensor, elapsed: Tensor, fading: Tensor, strength: Tensor) -> tuple[Tensor, Tensor]:
    """What the rows of a chunk add if nothing came before (..., C, V), and how they read what did (..., C, K).

    Row i adds u_i = β_i (v_i − Σ_{j < i} (k_i · k_j) fading_ij u_j − what it reads of before), a triangular system.
    """
    among = (strength * fading * (k @ k.mT)).tril(-1)
    wanted = torch.cat((strength * v, strength * elapsed.exp()[..., None] * k), -1)
    solved = torch.linalg.solve_triangular(among, wanted, upper=False, unitriangular=True)
    return solved[..., : v.shape[-1]], solved[..., v.shape[-1] :]


def _corrected_states(
    leaving: Tensor, added: Tensor, reading: Tensor, whole: Tensor, state: Tensor
) -> tuple[Tensor, Tensor]:
    """The states after and before each chunk: S' = (exp(whole) − leavingᵀ reading) S + leavingᵀ added."""
    factors = torch.diag_embed(whole.exp().expand(*whole.shape[:-1], leaving.shape[-1])) - leaving.mT @ reading
    inputs = leaving.mT @ added
    shape = inputs.shape
    factors, inputs = (x.transpose(0, 1).flatten(1, 2).contiguous() for x in (factors, inputs))
    states = matrix_scan(factors, inputs, state.flatten(0, 1))
    states = states.unflatten(1, (shape[0], shape[2])).transpose(0, 1)
    return states, torch.cat((state[:, None], states[:, :-1]), 1)
