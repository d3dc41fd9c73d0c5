"""Triton kernels of flash-linear-attention for matrix-valued recurrences (extra ``accelerated``).

Yang et al., arXiv 2312.06635, 2406.06484 and 2412.06464; github.com/fla-org/flash-linear-attention. Products are
computed in 16 bits and accumulated in 32 bits. Channels are zero-padded to whole tiles, which does not change the
result.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from .named import attention_backend

TILE = 16  # channels of the smallest tensor-core product
WIDEST = 256  # channels of the widest head whose state fits into on-chip memory
# Decays and strengths, by the kernels' argument names. They are accumulated over positions and stay in 32 bits.
EXACT = ("g", "w", "beta")


def accelerable(q: Tensor, v: Tensor) -> bool:
    """Return whether the kernels support the head widths of q and v (B, H, N, D) in the current precision.

    The kernels require at most 256 channels per head and 16-bit precision, that is, autocast on the device of q.
    """
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
    """Compute ``decay_attention``, whose documentation gives the shape and meaning of every tensor."""
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
    """Compute ``corrected_decay_attention``, whose documentation gives the shape and meaning of every tensor."""
    from fla.ops.rwkv7 import chunk_rwkv7

    return _by_tiles(chunk_rwkv7, state, r=q, k=k, v=v, w=log_decay, a=asked, b=written)


def _by_tiles(kernel: Callable[..., Any], state: Tensor | None, **tensors: Tensor) -> tuple[Tensor, Tensor]:
    """Run ``kernel`` on tensors in its layout and return the output (B, H, N, V) and the last state (B, H, K, V).

    Tensors (B, H, N, D) and (B, H, N) are passed to ``kernel`` as (B, N, H, D) and (B, N, H), zero-padded to whole
    tiles. Decays and strengths are cast to 32 bits, the other tensors to the autocast dtype.
    """
    key_width, value_width = tensors["k"].shape[-1], tensors["v"].shape[-1]
    dtype = torch.get_autocast_dtype(tensors["v"].device.type)
    inputs = {
        name: (_pad_channels(x) if x.dim() == 4 else x).to(torch.float32 if name in EXACT else dtype).transpose(1, 2)
        for name, x in tensors.items()
    }
    float_state = None if state is None else _pad_channels(_pad_channels(state.float()).mT).mT
    o, last_state = kernel(**inputs, scale=1.0, initial_state=float_state, output_final_state=True)
    return o[..., :value_width].transpose(1, 2), last_state[..., :key_width, :value_width]


def _pad_channels(x: Tensor) -> Tensor:
    """Return x (..., D) with its channels zero-padded to a multiple of ``TILE``."""
    return F.pad(x, (0, -x.shape[-1] % TILE))
