"""Linear attention: weights that are inner products of positive features, so keys and values are summed once."""

from __future__ import annotations

import math

import torch
import torch.nn.functional as F
from torch import Tensor

from ..mixer import Padding
from .linear_whole import divisible, whole_linear_attention


def full_precision(x: Tensor) -> torch.autocast:
    """A context without autocast on the device of ``x``; tensors on meta, which have none, are left alone."""
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
    """Σ_j (q_i · k_j) v_j / Σ_j (q_i · k_j), over all j, or over j ≤ i if ``causal``.

    Features q and k (B, H, N, F), values v (B, H, N, D) to (B, H, N, D). Keys at ``padding`` are left out.
    ``log_decay`` (B, H, N), causal only, multiplies all that came before position i by exp(log_decay_i).
    A row whose weights are all zero yields zeros. Features of either sign can make a normaliser vanish: one closer to
    zero than ``floor`` is moved there, on its side. Sums are kept in single precision or better whatever autocast says.
    O(N F D) time; memory O(N F), causal also O(N / chunk · F D) with ``chunk`` near √(F D).
    """
    with full_precision(q):
        q, k, v = (x.float() if x.dtype.itemsize < 4 else x for x in (q, k, v))
        if padding is not None:
            k = padding.zero_heads(k)
        if not causal:
            if log_decay is not None:
                raise ValueError("log_decay needs causal=True")
            return whole_linear_attention(q, k, v, floor)
        # A column of ones makes the normaliser a by-product of the same matrix products.
        summed = causal_linear_sums(q, k, F.pad(v, (0, 1), value=1.0), log_decay=log_decay, chunk=chunk)
        return summed[..., :-1] / divisible(summed[..., -1:], floor)[0]


def causal_linear_sums(
    q: Tensor, k: Tensor, v: Tensor, *, log_decay: Tensor | None = None, chunk: int | None = None
) -> Tensor:
    """Σ_{j ≤ i} (q_i · k_j) v_j as in ``linear_attention``, without normaliser, in the precision of its arguments.

    Within a chunk by its scores, before it by the state that the earlier chunks leave.
    """
    length = q.shape[2]
    chunk = min(chunk or _chunk(q.shape[-1], v.shape[-1]), length)
    rest = -length % chunk
    # Padded only where it must be: padding by nothing copies too.
    q, k, v = ((F.pad(x, (0, 0, 0, rest)) if rest else x).unflatten(2, (-1, chunk)) for x in (q, k, v))
    lower = torch.ones(chunk, chunk, dtype=torch.bool, device=q.device).tril()
    scores = q @ k.transpose(-1, -2)
    # A chunk alone has nothing before it.
    alone = chunk >= length
    if log_decay is None:
        o = scores.masked_fill(~lower, 0) @ v
        if not alone:
            added = v.transpose(-1, -2) @ k
            before = F.pad(added.cumsum(2)[:, :, :-1], (0, 0, 0, 0, 1, 0))
            o = o + q @ before.transpose(-1, -2)
    else:
        # Sums of logarithms stay inside a chunk: a difference of long sums would lose digits.
        elapsed = F.pad(log_decay.to(q.dtype), (0, rest)).unflatten(2, (-1, chunk)).cumsum(-1)
        fading = (elapsed[..., :, None] - elapsed[..., None, :]).masked_fill(~lower, -torch.inf).exp()
        o = (scores * fading) @ v
        if not alone:
            to_end = (elapsed[..., -1:] - elapsed).exp()[..., None]
            before = _decayed_states(v.transpose(-1, -2) @ (k * to_end), elapsed[..., -1].exp())
            o = o + (q * elapsed.exp()[..., None]) @ before.transpose(-1, -2)
    return o.flatten(2, 3)[:, :, :length]


def _chunk(features: int, width: int) -> int:
    return max(16, 16 * round(math.sqrt(features * width) / 16))


def _decayed_states(added: Tensor, kept: Tensor) -> Tensor:
    """The state before each chunk (B, H, chunks, ...), from what each adds and what share of the past it keeps."""
    state = torch.zeros_like(added[:, :, 0])
    states = []
    # unbind, not indexing: the backward pass of an index writes a tensor of full size per chunk.
    for more, share in zip(added.unbind(2), kept.unbind(2), strict=True):
        states.append(state)
        state = share[..., None, None] * state + more
    return torch.stack(states, 2)
