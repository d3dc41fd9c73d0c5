"""Move models and batches to fake tensors on the fake CUDA device."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import torch
from torch import Tensor, nn
from torch._subclasses.fake_tensor import FakeTensor, FakeTensorMode

from lra_bench.contracts import Batch

from .replacements import DEVICE


def place(model: nn.Module, mode: FakeTensorMode) -> nn.Module:
    """Move parameters and buffers of ``model`` to the GPU, as ``Module.to`` does, and return it.

    Other tensors that a module holds stay where they are, so that the step fails if it uses them.
    """
    moved: dict[int, Tensor] = {}

    def move(tensor: Tensor) -> Tensor:
        if id(tensor) not in moved:
            fake = FakeTensor(mode, tensor.detach().to("meta"), DEVICE)
            is_parameter = isinstance(tensor, nn.Parameter)
            moved[id(tensor)] = nn.Parameter(fake, tensor.requires_grad) if is_parameter else fake
        return moved[id(tensor)]

    for module in model.modules():
        for held in (module._parameters, module._buffers):
            for name, tensor in held.items():
                if tensor is not None:
                    held[name] = move(tensor)  # type: ignore[assignment]
        if isinstance(module, nn.RNNBase):
            module._flat_weights = [getattr(module, name) for name in module._flat_weights_names]
            module._flat_weight_refs = [None] * len(module._flat_weights)
            module.flatten_parameters = lambda: None  # type: ignore[method-assign]
    return model


def place_batch(batch: Batch, mode: FakeTensorMode) -> Batch:
    """Return a copy of the batch with fake tensors on the device, like ``Batch.to``.

    ``reset`` stays on the host, in page-locked memory, because the training loop reads it there.
    """
    placed = batch._map(lambda tensor: FakeTensor(mode, tensor.to("meta"), DEVICE))
    if "reset" not in batch.extra:
        return placed
    reset: Any = FakeTensor(mode, batch.extra["reset"].to("meta"), torch.device("cpu"))
    reset.pinned = True
    return replace(placed, extra={**placed.extra, "reset": reset})


def with_padding(batch: Batch) -> Batch:
    """Return the batch with every second sequence shortened to 5/8 of its length."""
    lengths = batch.lengths.clone()
    lengths.view(lengths.shape[0], -1)[1::2] = max(1, batch.width * 5 // 8)
    return Batch(lengths, batch.targets, batch.tokens, batch.values, batch.extra)
