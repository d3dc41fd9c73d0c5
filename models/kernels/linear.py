"""Linear attention: weights are inner products of features, so that keys and values are summed only once."""

from __future__ import annotations

import math

import torch
import torch.nn.functional as F
from torch import Tensor

from ..mixer import Padding
from .linear_whole import divisible, whole_linear_attention


def full_precision(x: Tensor) -> torch.autocast:
    """Return a context that disables autocast on the device of ``x``, or on CPU if ``x`` is a meta tensor."""
    return torch.autocast("cpu" if x.device.type == "meta" else x.device.type, enabled=False)


def linear_attention(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    *,
    padding: Padding | None = None,
    causal: bool = False,
    log_decay: Tensor | None = None,
    chunk: int | None = None,
    floor: float = 0.0,
) -> Tensor:
    """Compute Σ_j (q_i · k_j) v_j / Σ_j (q_i · k_j), over all j, or over j ≤ i if ``causal``.

    A position whose weights are all zero yields zeros. Sums are computed in single precision or better, regardless of
    autocast. O(N F D) time; memory O(N F), if causal also O(N / chunk · F D) with ``chunk`` near √(F D).

    Args:
        q: Features of the queries (B, H, N, F).
        k: Features of the keys (B, H, N, F).
        v: Values (B, H, N, D).
        padding: Padding, whose keys are left out.
        causal: Sum over j ≤ i only.
        log_decay: Logarithms of decays (B, H, N), for causal attention only: the contributions of all positions before
            i are multiplied by exp(log_decay_i).
        chunk: Positions per chunk if ``causal``, by default near √(F D).
        floor: Smallest absolute value of the normaliser; a normaliser closer to zero is set to ``floor`` with its sign.
            Needed if features have either sign, since normalisers can then vanish.

    Returns:
        The outputs (B, H, N, D).

    Raises:
        ValueError: If ``log_decay`` is given and ``causal`` is false.
    """
    with full_precision(q):
        q, k, v = (x.float() if x.dtype.itemsize < 4 else x for x in (q, k, v))
        if padding is not None:
            k = padding.zero_heads(k)
        if not causal:
            if log_decay is not None:
                raise ValueError("log_decay requires causal=True")
            return whole_linear_attention(q, k, v, floor)
        # A column of ones in the values yields the normaliser from the same matrix products.
        summed = causal_linear_sums(q, k, F.pad(v, (0, 1), value=1.0), log_decay=log_decay, chunk=chunk)
        return summed[..., :-1] / divisible(summed[..., -1:], floor)[0]


def causal_linear_sums(
    q: Tensor, k: Tensor, v: Tensor, *, log_decay: Tensor | None = None, chunk: int | None = None
) -> Tensor:
    """Return Σ_{j ≤ i} (q_i · k_j) v_j without the normaliser, in the precision of the arguments.

    Arguments are as in ``linear_attention``. Contributions from the same chunk are computed from its scores, those from
    earlier chunks from the state that these leave.
    """
    length = q.shape[2]
    chunk = min(chunk or _default_chunk(q.shape[-1], v.shape[-1]), length)
    rest = -length % chunk
    # Pad only if necessary, since padding by zero rows copies too.
    q, k, v = ((F.pad(x, (0, 0, 0, rest)) if rest else x).unflatten(2, (-1, chunk)) for x in (q, k, v))
    lower = torch.ones(chunk, chunk, dtype=torch.bool, device=q.device).tril()
    scores = q @ k.transpose(-1, -2)
    # A single chunk has no state before it.
    single_chunk = chunk >= length
    if log_decay is None:
        o = scores.masked_fill(~lower, 0) @ v
        if not single_chunk:
            added = v.transpose(-1, -2) @ k
            before = F.pad(added.cumsum(2)[:, :, :-1], (0, 0, 0, 0, 1, 0))
            o = o + q @ before.transpose(-1, -2)
    else:
        # Logarithms are only summed within a chunk, since a difference of long sums would lose precision.
        elapsed = F.pad(log_decay.to(q.dtype), (0, rest)).unflatten(2, (-1, chunk)).cumsum(-1)
        decays = (elapsed[..., :, None] - elapsed[..., None, :]).masked_fill(~lower, -torch.inf).exp()
        o = (scores * decays) @ v
        if not single_chunk:
            to_end = (elapsed[..., -1:] - elapsed).exp()[..., None]
            before = _decayed_states(v.transpose(-1, -2) @ (k * to_end), elapsed[..., -1].exp())
            o = o + (q * elapsed.exp()[..., None]) @ before.transpose(-1, -2)
    return o.flatten(2, 3)[:, :, :length]


def read_linear_sums(
    q: Tensor, k: Tensor, v: Tensor, state: Tensor | None, log_decay: Tensor | None = None
) -> tuple[Tensor, Tensor]:
    """Return ``causal_linear_sums`` of tokens that follow those of ``state``, and the state (B, H, F, D) after them.

    The state is Σ_j k_j v_jᵀ over all tokens so far, each multiplied by the decays after it.
    """
    o = causal_linear_sums(q, k, v, log_decay=log_decay)
    elapsed = None if log_decay is None else log_decay.to(q.dtype).cumsum(-1)
    added = (k if elapsed is None else k * (elapsed[..., -1:] - elapsed).exp()[..., None]).mT @ v
    if state is None:
        return o, added
    if elapsed is None:
        return o + q @ state, state + added
    return o + (q * elapsed.exp()[..., None]) @ state, state * elapsed[..., -1].exp()[..., None, None] + added


def _default_chunk(features: int, width: int) -> int:
    return max(16, 16 * round(math.sqrt(features * width) / 16))


def _decayed_states(added: Tensor, kept: Tensor) -> Tensor:
    """Return the state before each chunk (B, H, chunks, ...).

    Each chunk multiplies the state by ``kept`` (B, H, chunks) and adds ``added`` (B, H, chunks, ...).
    """
    state = torch.zeros_like(added[:, :, 0])
    states = []
    # unbind instead of indexing, whose backward pass writes a tensor of full size per chunk.
    for addition, factor in zip(added.unbind(2), kept.unbind(2), strict=True):
        states.append(state)
        state = factor[..., None, None] * state + addition
    return torch.stack(states, 2)
