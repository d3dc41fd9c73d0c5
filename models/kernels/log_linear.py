"""Log-linear attention: linear attention with a decay, whose weights depend on a hierarchy of preceding blocks."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor

from .linear import full_precision

CHUNK = 64
"""Default number of positions per chunk."""


def level_count(length: int) -> int:
    """Return the number of levels of a sequence of ``length`` positions: 0, and one per power of two below it."""
    return 1 + max(length - 1, 0).bit_length()


def log_linear_attention(
    q: Tensor, k: Tensor, v: Tensor, log_decay: Tensor, scales: Tensor, *, chunk: int = CHUNK
) -> Tensor:
    """Compute o_t = Σ_{j ≤ t} scales_(t, level(t, j)) exp(Σ_{j < i ≤ t} log_decay_i) (q_t · k_j) v_j.

    Level 0 is j = t. If the binary form of t has the digit 2^(l−1), level l are the 2^(l−1) positions before t without
    that digit and all smaller ones, as in a Fenwick tree: t = 6, counted from 0, has the levels 0 (6), 2 (4, 5) and 3
    (0 … 3). Guo et al. 2025, arXiv 2506.04761. No approximation. Computed in single precision or better, regardless of
    autocast. For each example and head O(N (C K + C V + K V log(N / C))) time in chunks of C positions, and
    O(N (K + V + C + K V / C)) numbers per level of memory.

    Args:
        q: Queries (B, H, N, K).
        k: Keys (B, H, N, K).
        v: Values (B, H, N, V).
        log_decay: Logarithms of the decays (B, H, N), at most zero.
        scales: Factors of the levels (B, H, N, L); those of level L − 1 are used for all higher levels.
        chunk: Positions per chunk, a power of two.

    Returns:
        The outputs (B, H, N, V).
    """
    length, levels = q.shape[2], scales.shape[-1]
    chunk = min(chunk, 1 << (length - 1).bit_length())
    with full_precision(q):
        # From here on (B, H, X, C, ·) for X chunks of C positions.
        q, k, v, log_decay, scales = (_in_blocks(_exact(x), chunk) for x in (q, k, v, log_decay, scales))
        # Log decays accumulated from the start of the block, here of the chunk, up to and including each position.
        elapsed = log_decay.cumsum(3)
        o = (q @ k.mT * _pairwise_decays(elapsed) * _pairwise_scales(scales, chunk)) @ v
        total = elapsed[..., -1]
        states = (k * (total[..., None] - elapsed).exp()[..., None]).mT @ v
        # Blocks are merged in pairs; queries of the second block read the state of the first one.
        level = chunk.bit_length()
        while states.shape[2] > 1:
            q, o, elapsed, scales = (_pairs(x) for x in (q, o, elapsed, scales))
            states, total = _pairs(states), _pairs(total)
            factors = scales[:, :, :, 1, :, min(level, levels - 1)] * elapsed[:, :, :, 1].exp()
            read = (q[:, :, :, 1] * factors[..., None]) @ states[:, :, :, 0]
            o = torch.stack((o[:, :, :, 0], o[:, :, :, 1] + read), 3)
            elapsed = torch.stack((elapsed[:, :, :, 0], elapsed[:, :, :, 1] + total[:, :, :, :1]), 3)
            states = total[:, :, :, 1, None, None].exp() * states[:, :, :, 0] + states[:, :, :, 1]
            total = total.sum(3)
            q, o, elapsed, scales = (x.flatten(3, 4) for x in (q, o, elapsed, scales))
            level += 1
    return o.flatten(2, 3)[:, :, :length]


def _exact(x: Tensor) -> Tensor:
    return x.float() if x.dtype.itemsize < 4 else x


def _in_blocks(x: Tensor, size: int) -> Tensor:
    """Split (B, H, N, ...) into zero-padded blocks (B, H, X, ``size``, ...)."""
    return _padded(x, -x.shape[2] % size).unflatten(2, (-1, size))


def _pairs(x: Tensor) -> Tensor:
    """Split (B, H, X, ...) into pairs (B, H, X / 2, 2, ...), the last one zero-padded."""
    return _padded(x, x.shape[2] % 2).unflatten(2, (-1, 2))


def _padded(x: Tensor, count: int) -> Tensor:
    """Append ``count`` zeros to the third axis of ``x``."""
    return F.pad(x, (*[0, 0] * (x.dim() - 3), 0, count)) if count else x


def _pairwise_decays(elapsed: Tensor) -> Tensor:
    """Return the decays (..., i, j) from position j to position i of a chunk, zero for j > i."""
    later = torch.ones(elapsed.shape[-1], elapsed.shape[-1], dtype=torch.bool, device=elapsed.device).triu(1)
    return (elapsed[..., :, None] - elapsed[..., None, :]).masked_fill(later, -torch.inf).exp()


def _pairwise_scales(scales: Tensor, chunk: int) -> Tensor:
    """Return scales_(i, level(i, j)) (..., C, C) for scales (..., C, L)."""
    chosen = level_choice(chunk, scales.shape[-1], scales)
    return torch.einsum("bhxil,ilj->bhxij", scales, chosen)


def level_choice(length: int, levels: int, like: Tensor) -> Tensor:
    """Return 1 where position j ≤ i has the level for position i, else 0: (N, ``levels``, N).

    Levels above ``levels`` − 1 count as that one. Device and type are those of ``like``.
    """
    position = torch.arange(length, device=like.device)
    # The level is the number of binary digits of i xor j: those up to the highest one in which i and j differ.
    powers = 1 << torch.arange(level_count(length) - 1, device=like.device)
    differing = position[:, None, None] ^ position
    level = (differing >= powers[:, None]).sum(1, keepdim=True).clamp(max=levels - 1)
    chosen = (level == torch.arange(levels, device=like.device)[:, None]) & (position <= position[:, None, None])
    return chosen.to(like.dtype)
