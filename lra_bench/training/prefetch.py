"""Build batches for a GPU one step ahead, in a thread and in page-locked memory."""

from __future__ import annotations

from collections import deque
from collections.abc import Generator, Iterator
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from typing import TypeVar

import torch
from torch import Tensor

from lra_bench.contracts import Batch

T = TypeVar("T")

DEPTH = 2
"""Number of batches that are built in advance."""


def builds_ahead(device: torch.device) -> bool:
    """Return whether batches are built in a thread. On a CPU it would take cores from the computation."""
    return device.type == "cuda"


def ahead_of(parts: Iterator[tuple[T, Batch]], device: torch.device) -> Generator[tuple[T, Batch]]:
    """Yield the pairs of a value and a batch in ``parts``; for a GPU, build the next ones in a thread.

    The batches for a GPU are in page-locked memory, so that ``Batch.to`` does not wait. The thread ends when the
    generator is closed.
    """
    if not builds_ahead(device):
        yield from parts
        return

    def build() -> tuple[T, Batch] | None:
        part = next(parts, None)
        return part if part is None or device.type != "cuda" else (part[0], part[1]._map(Tensor.pin_memory))

    # A new thread uses the first GPU unless set_device is called in it.
    prepare = partial(torch.cuda.set_device, device) if device.type == "cuda" else None
    thread = ThreadPoolExecutor(1, "batches", prepare)
    try:
        pending = deque(thread.submit(build) for _ in range(DEPTH + 1))
        while (part := pending.popleft().result()) is not None:
            yield part
            pending.append(thread.submit(build))
    finally:
        thread.shutdown(wait=True, cancel_futures=True)
