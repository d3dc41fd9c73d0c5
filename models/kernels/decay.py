"""Linear attention with a decaying state and, optionally, the delta rule, in chunks or position by position."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor

from .decay_steps import decay_steps
from .linear import full_precision
from .matrix_scan import matrix_scan
from .scan import scan
from .threads import LANES

CHUNK = 64
"""Largest default number of positions per chunk."""
SMALLEST_CHUNK = 16
"""Smallest default number of positions per chunk, on CPU."""
PAIRWISE_POSITIONS = 4
"""Number of positions up to which decays per channel are computed for each pair of positions."""


def decay_attention(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    log_decay: Tensor,
    *,
    strength: Tensor | None = None,
    state: Tensor | None = None,
    chunk: int | None = None,
) -> tuple[Tensor, Tensor]:
    """Compute linear attention with a decaying state; also return the last state.

    o_t = S_tᵀ q_t with S_t = D_t + k_t v_tᵀ, in which D_t = Diag(exp(log_decay_t)) S_(t−1) is the decayed state. With
    ``strength`` β, the delta rule (Yang et al. 2024, arXiv 2406.06484) moves the value that the state stores for the
    key, D_tᵀ k_t, towards v_t: S_t = D_t + β_t k_t (v_t − D_tᵀ k_t)ᵀ.

    No approximation, and numerically stable for any decay: logarithms are summed only within a chunk, and only
    exponentials of numbers ≤ 0 are computed. Sums are computed in single precision or better, regardless of autocast.
    For each example and head, with chunks of C positions: O(N (C K + C V + K V)) time and O(N (K + V + C + K V / C))
    memory. The delta rule adds O(N (C K + C V + K² + K² V / C)) time and O(N K² / C) memory. Many small heads are
    computed position by position on CPU (``few_features``): O(N K V) time and O(N (K + V)) memory.

    Args:
        q: Queries (B, H, N, K).
        k: Keys (B, H, N, K).
        v: Values (B, H, N, V).
        log_decay: Logarithms of the decays, at most zero: (B, H, N) with one decay per position, or (B, H, N, K) with
            one per position and channel of the key.
        strength: Step sizes β of the delta rule (B, H, N); requires ``log_decay`` (B, H, N). By default the delta rule
            is not used.
        state: Initial state (B, H, K, V), by default zeros.
        chunk: Positions per chunk, a power of two. By default ``CHUNK``; on CPU, where products of positions within a
            chunk take most of the time if heads are small, about the larger of K and V, or no chunks for many small
            heads.

    Returns:
        The outputs (B, H, N, V) and the last state (B, H, K, V). A position whose k, log_decay and strength are zero
        leaves the state unchanged, so padding can be represented in this way.

    Raises:
        ValueError: If ``chunk`` is not a power of two, or if ``strength`` is given with one decay per channel.
    """
    length = q.shape[2]
    if strength is not None and log_decay.dim() == q.dim():
        raise ValueError("strength requires log_decay of shape (B, H, N)")
    if chunk is None and q.device.type == "cpu" and few_features(q, v, log_decay, strength):
        return decay_steps(q, k, v, log_decay, strength, state)
    if chunk is None:
        chunk = _default_chunk(max(q.shape[-1], v.shape[-1]), q.device)
    if chunk < 1 or chunk & (chunk - 1):
        raise ValueError(f"chunk={chunk} is not a power of two")
    # At most the smallest power of two that is not below the length.
    chunk = min(chunk, 1 << (length - 1).bit_length())
    with full_precision(q):
        # From here on q, k and v are (B, X, H, C, ·) for X chunks of C positions.
        q, k, v, log_decay = (_in_chunks(x, chunk) for x in (q, k, v, log_decay))
        # Log decays accumulated from the start of the chunk up to and including each position.
        cumulative = log_decay.cumsum(3)
        per_channel = cumulative.dim() == q.dim()
        channel_cumulative = cumulative if per_channel else cumulative[..., None]
        # Log decay over the chunk, (B, X, H, K or 1).
        chunk_total = channel_cumulative[:, :, :, -1]
        decayed_q = q * channel_cumulative.exp()
        keys_at_end = k * (chunk_total[:, :, :, None] - channel_cumulative).exp()
        if state is None:
            state = q.new_zeros(*q.shape[:1], q.shape[2], q.shape[-1], v.shape[-1])
        decays = None if per_channel else _pairwise_decays(cumulative)
        # States before and after each chunk, (B, X, H, K, V).
        if strength is None:
            added = keys_at_end.mT @ v
            states = scan(chunk_total.exp()[..., None], added, state)
            states_before = torch.cat((state[:, None], states[:, :-1]), 1)
        else:
            assert decays is not None
            strength = _in_chunks(strength, chunk)[..., None]
            added_values, state_weights = _solve_delta_rule(k, v, cumulative, decays, strength)
            states, states_before = _delta_rule_states(keys_at_end, added_values, state_weights, chunk_total, state)
            # The values that the delta rule adds for the keys; with them the outputs are those of linear attention.
            v = added_values - state_weights @ states_before
        within_chunk = _channel_decayed_sums(q, k, v, cumulative) if decays is None else (q @ k.mT * decays) @ v
        o = within_chunk + decayed_q @ states_before
    return o.transpose(1, 2).flatten(2, 3)[:, :, :length], states[:, -1]


def few_features(q: Tensor, v: Tensor, log_decay: Tensor, strength: Tensor | None) -> bool:
    """Return whether a loop over positions is faster on CPU than matrix products of chunks.

    The loop takes time proportional to K V for each position, and is vectorised over the heads of all examples. With
    chunks, small heads leave most of the time to operators other than matrix products: those of the triangular system
    of the delta rule, or of decays per channel. In measurements of the forward and backward pass at lengths 50 to 1024
    on one thread, the loop took as long as chunks at K V of about 256; with the delta rule, at about 1000; with decays
    per channel, at about 2000. The last two limits are half of that, because the ratio depends on the load of the
    machine. All are halved for 32 to 63 heads of all examples; with fewer, vectorised loops are too short.
    """
    streams = q.shape[0] * q.shape[1]
    largest = 1024 if log_decay.dim() == q.dim() else 256 if strength is None else 512
    return streams >= LANES and q.shape[-1] * v.shape[-1] <= (largest if streams >= 2 * LANES else largest // 2)


def _default_chunk(size: int, device: torch.device) -> int:
    """Return the positions per chunk for keys and values of at most ``size`` features."""
    if device.type != "cpu":
        return CHUNK
    return min(max(1 << size.bit_length() - 1, SMALLEST_CHUNK), CHUNK)


def _in_chunks(x: Tensor, chunk: int) -> Tensor:
    """Fold (B, H, N, ...) to (B, X, H, C, ...), zero-padded at the end, in single precision or better."""
    rest = -x.shape[2] % chunk
    x = x.float() if x.dtype.itemsize < 4 else x
    x = F.pad(x, (*[0, 0] * (x.dim() - 3), 0, rest)) if rest else x
    return x.unflatten(2, (-1, chunk)).transpose(1, 2)


def _pairwise_decays(cumulative: Tensor) -> Tensor:
    """Return the decays (..., i, j) from position j to position i of a chunk, zero for j > i.

    ``cumulative`` (..., C) to (..., C, C).
    """
    lower = torch.ones(cumulative.shape[-1], cumulative.shape[-1], dtype=torch.bool, device=cumulative.device).tril()
    return (cumulative[..., :, None] - cumulative[..., None, :]).masked_fill(~lower, -torch.inf).exp()


def _channel_decayed_sums(q: Tensor, k: Tensor, v: Tensor, cumulative: Tensor) -> Tensor:
    """Return Σ_{j ≤ i} Σ_d q_id k_jd exp(cumulative_id − cumulative_jd) v_j within chunks, (B, X, H, C, V).

    Chunks are halved recursively. The sum over j in the first half, for i in the second, is a matrix product: the decay
    from j to i is the product of the decays from j to the end of the first half and from there to i. Neither exceeds
    one.
    """
    size = q.shape[3]
    if size <= PAIRWISE_POSITIONS:
        lower = torch.ones(size, size, dtype=torch.bool, device=q.device).tril()[..., None]
        decays = (cumulative[..., :, None, :] - cumulative[..., None, :, :]).masked_fill(~lower, -torch.inf).exp()
        return torch.einsum("...id,...jd,...ijd->...ij", q, k, decays) @ v
    halves = [x.unflatten(3, (2, -1)) for x in (q, k, v, cumulative)]
    (_, second_q), (first_k, _), (first_v, _), (first, second) = (x.unbind(3) for x in halves)
    boundary = first[..., -1:, :]
    across = (second_q * (second - boundary).exp()) @ (first_k * (boundary - first).exp()).mT @ first_v
    # Halves become heads of half the length: (B, X, H, 2, C / 2, ·) to (B, X, 2H, C / 2, ·).
    within = _channel_decayed_sums(*(x.flatten(2, 3) for x in halves)).unflatten(2, (-1, 2))
    return torch.cat((within[:, :, :, 0], within[:, :, :, 1] + across), 3)


def _solve_delta_rule(
    k: Tensor, v: Tensor, cumulative: Tensor, decays: Tensor, strength: Tensor
) -> tuple[Tensor, Tensor]:
    """Solve the delta rule within chunks, as a linear function of the state before the chunk.

    With S the state before the chunk, position i adds k_i u_iᵀ to the state, in which
    u_i = β_i (v_i − Σ_{j < i} decays_ij (k_i · k_j) u_j − exp(cumulative_i) Sᵀ k_i). This is a triangular system of
    equations, whose solution U (C, V) is A − W S.

    Returns:
        A (B, X, H, C, V), the values that are added to a zero state, and W (B, X, H, C, K).
    """
    # Only the part below the diagonal is read.
    system = (strength * k) @ k.mT * decays
    right_side = torch.cat((strength * v, strength * cumulative.exp()[..., None] * k), -1)
    solved = torch.linalg.solve_triangular(system, right_side, upper=False, unitriangular=True)
    return solved[..., : v.shape[-1]], solved[..., v.shape[-1] :]


def _delta_rule_states(
    keys_at_end: Tensor, added_values: Tensor, state_weights: Tensor, chunk_total: Tensor, state: Tensor
) -> tuple[Tensor, Tensor]:
    """Return the states after and before each chunk, (B, X, H, K, V) each.

    A chunk replaces the state S by (exp(chunk_total) I − keys_at_endᵀ W) S + keys_at_endᵀ A, with A and W the results
    of ``_solve_delta_rule`` (``added_values`` and ``state_weights``).
    """
    chunk_decay = chunk_total.exp().expand(*chunk_total.shape[:-1], keys_at_end.shape[-1])
    factors = torch.diag_embed(chunk_decay) - keys_at_end.mT @ state_weights
    inputs = keys_at_end.mT @ added_values
    shape = inputs.shape
    # ``matrix_scan`` expects time as the first axis: (X, B·H, K, ·).
    factors, inputs = (x.transpose(0, 1).flatten(1, 2).contiguous() for x in (factors, inputs))
    states = matrix_scan(factors, inputs, state.flatten(0, 1))
    states = states.unflatten(1, (shape[0], shape[2])).transpose(0, 1)
    return states, torch.cat((state[:, None], states[:, :-1]), 1)
