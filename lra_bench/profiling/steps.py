"""The steps to time: a training step as in the training loop, and an inference step without gradients."""

from __future__ import annotations

from typing import Any

import torch
from torch import nn
from torch.utils._pytree import tree_map

from lra_bench.contracts import Batch
from lra_bench.runtime.hardware import Hardware
from lra_bench.training.loop import after_step, forward_backward, stepped_modules
from lra_bench.training.optimizer import Optimizer

from .timing import Step


def train_step(run: nn.Module, batch: Batch, optimizer: Optimizer, hardware: Hardware, model: nn.Module) -> Step:
    """Return a step that runs the forward and backward passes, clipping and the optimizer on ``batch``, with dropout.

    ``run`` is ``model`` or its compiled form. Memory is passed from step to step as in a stream. The learning rate
    stays at that of the first step; otherwise thousands of steps on one batch could drive weights and activations into
    ranges of numbers in which CPUs are slow.
    """
    model.train()
    memory: Any = None
    count = 0
    stepped = stepped_modules(model)

    def step() -> None:
        nonlocal memory, count
        _, memory, statistics = forward_backward(run, batch, optimizer, hardware, memory)
        optimizer.step(0)
        after_step(stepped, count, statistics)
        count += 1

    return step


def inference_step(run: nn.Module, batch: Batch, hardware: Hardware, model: nn.Module) -> Step:
    """Return a step that runs the forward pass on ``batch`` in evaluation mode, without gradients.

    ``run`` is ``model`` or its compiled form. Memory is passed from step to step.
    """
    model.eval()
    memory: Any = None

    def step() -> None:
        nonlocal memory
        with torch.inference_mode(), hardware.autocast():
            output = run(batch) if memory is None else run(batch, memory)
        memory = tree_map(lambda tensor: tensor, output.memory)

    return step
