"""Torch's recurrent networks, in a precision that they support."""

from __future__ import annotations

from typing import Any

import torch
from torch import nn
from torch.nn.utils.rnn import PackedSequence
from torch.utils._pytree import tree_map_only

from .linear import full_precision
from .named import attention_backend

LSTM_TYPES = (torch.bfloat16,) if "AVX512" in torch.backends.cpu.get_cpu_capability() else ()
"""Types in which an LSTM runs under autocast on this CPU: oneDNN's kernel for bfloat16 needs AVX-512."""
GRU_TYPES = (torch.bfloat16,)
"""Types in which a GRU runs under autocast on a CPU; torch supports float16 for some sizes only."""


def recurrent(network: nn.Module, x: Any, state: Any = None) -> Any:
    """Return ``network(x, state)``, in single precision if the CPU has no kernel for the type of autocast.

    The record then contains the name ``rnn_fp32`` in ``attention_backend``.

    Args:
        network: An ``nn.LSTM`` or ``nn.GRU``.
        x: The inputs (B, N, E), or packed sequences.
        state: The initial state, None for zeros.

    Returns:
        The outputs and the final state.
    """
    types = LSTM_TYPES if isinstance(network, nn.LSTM) else GRU_TYPES
    device = next(network.parameters()).device.type
    if device != "cpu" or not torch.is_autocast_enabled("cpu") or torch.get_autocast_dtype("cpu") in types:
        return network(x, state)
    return _in_single_precision(x.data if isinstance(x, PackedSequence) else x, x, network, state)


@attention_backend("rnn_fp32")
def _in_single_precision(data: torch.Tensor, x: Any, network: nn.Module, state: Any) -> Any:
    """Return ``network(x, state)`` without autocast; ``data`` is a tensor of ``x``."""
    kind = next(network.parameters()).dtype
    with full_precision(data):
        return network(x.to(kind), tree_map_only(torch.Tensor, lambda part: part.to(kind), state))
