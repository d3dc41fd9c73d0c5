"""Evaluate a language model with memories of different lengths, on the same tokens."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any

from torch import Tensor, nn
from torch.utils._pytree import tree_leaves

from lra_bench.contracts import Remembering, TaskSpec
from lra_bench.data.batches import Rows
from lra_bench.data.windows import Windows, cut_all
from lra_bench.records.sections import Memory, MemoryPoint
from lra_bench.runtime.hardware import Hardware
from lra_bench.training.evaluation import evaluate, evaluating

from .extrapolation import interval


@contextmanager
def with_memory_length(model: nn.Module, length: int) -> Iterator[None]:
    """Set the memory length of all modules of ``model`` that have one; restore it when the context exits."""
    before = [(module, module.memory_length) for module in remembering(model)]
    try:
        for module, _ in before:
            module.memory_length = length
        yield
    finally:
        for module, old in before:
            module.memory_length = old


def remembering(model: nn.Module) -> list[Any]:
    """Return the modules of ``model`` whose memory length can be changed."""
    return [module for module in model.modules() if isinstance(module, Remembering)]


def evaluate_memory_lengths(
    model: nn.Module,
    rows: Rows,
    spec: TaskSpec,
    lengths: Sequence[int],
    hardware: Hardware,
    batch_size: int,
    attempt: int = 1,
) -> Memory | None:
    """Evaluate all windows of ``rows`` in the order of the documents, with each memory length.

    All lengths, also 0, are scored on the same windows of the training length, each read after the window before it.

    Args:
        model: The trained model.
        rows: The documents of the test split.
        spec: The specification of the task.
        lengths: Memory lengths in tokens or slots.
        hardware: The device and precision.
        batch_size: Number of documents that are read side by side.
        attempt: The number of the attempt, stored in the section.

    Returns:
        The section of the record; None if the task is not language modelling or the model has no memory whose length
        can be changed.
    """
    modules = remembering(model)
    if spec.kind != "language_modeling" or not modules or not lengths:
        return None
    points: list[MemoryPoint] = []
    for length in sorted(set(lengths)):
        with with_memory_length(model, length):
            result = evaluate(model, rows, spec, hardware, batch_size, f"Memory of {length:,}", stream=True)
            bytes_of_state = _full_state(model, rows, spec, length, hardware)
        low, high = interval(result, spec)
        points.append(
            {
                "memory_length": length,
                "n": result.n,
                "score": result.score,
                "loss": result.loss,
                "low": low,
                "high": high,
                "state_bytes": bytes_of_state,
            }
        )
    return {
        "trained_length": max(module.memory_length for module in modules),
        "window_length": spec.train_length,
        "points": points,
        "attempt": attempt,
    }


def state_bytes(memory: Any) -> int:
    """Return the bytes of all tensors in ``memory``."""
    return sum(leaf.numel() * leaf.element_size() for leaf in tree_leaves(memory) if isinstance(leaf, Tensor))


def _full_state(model: nn.Module, rows: Rows, spec: TaskSpec, length: int, hardware: Hardware) -> int:
    """Return the bytes that the model passes on per document after ``length`` tokens and two windows."""
    windows = cut_all(rows.lengths, spec.train_length)
    first = windows.select(windows.documents == windows.documents[0])
    memory = None
    with evaluating(model):
        for number in range(min(len(first), -(-length // spec.train_length) + 2)):
            batch = _one(first, number).batch(rows).to(hardware.device)
            with hardware.autocast():
                memory = model(batch, memory).memory
    return state_bytes(memory)


def _one(windows: Windows, number: int) -> Windows:
    return windows.select(slice(number, number + 1))
