"""Recurrences of matrices by the Triton kernels of flash-linear-attention, the extra ``accelerated``.

Yang et al., arXiv 2312.06635, 2406.06484 and 2412.06464; github.com/fla-org/flash-linear-attention. Products are of 16
bits and summed in 32. Channels are filled up with zeros to whole tiles, which changes nothing.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from .named import attention_backend

TILE = 16  # channels of the smallest product that a tensor core takes
WIDEST = 256  # channels of a head whose state has room on the chip
EXACT = ("g", "w", "beta")  # decays and strengths by the kernels' names: they are summed, so they keep 32 bits


def accelerable(q: Tensor, v: Tensor) -> bool:
    """Whether the kernels take heads of so many channels, in the precision at hand, which has to be of 16 bits."""
    return torch.is_autocast_enabled(q.device.type) and max(q.shape[-1], v.shape[-1]) <= WIDEST


@attention_backend("flash_linear_attention")
def accelerated_decay_attention(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    log_decay: Tensor,
    *,
    strength: Tensor | None = None,
    state: Tensor | None = None,
) -> tuple[Tensor, Tensor]:
    """``decay_attention``; shapes and meaning of all tensors as there."""
    from fla.ops.gated_delta_rule import chunk_gated_delta_rule
    from fla.ops.gla import chunk_gla
    from fla.ops.simple_gla import chunk_simple_gla

    if strength is not None:
        return _by_tiles(chunk_gated_delta_rule, state, q=q, k=k, v=v, g=log_decay, beta=strength)
    return _by_tiles(chunk_gla if log_decay.dim() == 4 else chunk_simple_gla, state, q=q, k=k, v=v, g=log_decay)


@attention_backend("flash_linear_attention")
def accelerated_corrected_decay_attention(
    q: Tensor, k: Tensor, v: Tensor, log_decay: Tensor, asked: Tensor, written: Tensor, *, state: Tensor | None = None
) -> tuple[Tensor, Tensor]:
    """``corrected_decay_attention``; shapes and meaning of all tensors as there."""
    from fla.ops.rwkv7 import chunk_rwkv7

    return _by_tiles(chunk_rwkv7, state, r=q, k=k, v=v, w=log_decay, a=asked, b=written)


def _by_tiles(kernel: Callable[..., Any], state: Tensor | None, **rows: Tensor) -> tuple[Tensor, Tensor]:
    """What ``kernel`` makes of rows (B, H, N, D) or (B, H, N), which it wants as (B, N, H, D) and (B, N, H)."""
    keys, values = rows["k"].shape[-1], rows["v"].shape[-1]
    dtype = torch.get_autocast_dtype(rows["v"].device.type)
    given = {
        name: (_filled(x) if x.dim() == 4 else x).to(torch.float32 if name in EXACT else dtype).transpose(1, 2)
        for name, x in rows.items()
    }
    state_in_float32 = None if state is None else _filled(_filled(state.float()).mT).mT
    o, last = kernel(**given, scale=1.0, initial_state=state_in_float32, output_final_state=True)
    return o[..., :values].transpose(1, 2), last[..., :keys, :values]


def _filled(x: Tensor) -> Tensor:
    """x (..., D) with zeros behind its channels up to a whole number of tiles."""
    return F.pad(x, (0, -x.shape[-1] % TILE))
