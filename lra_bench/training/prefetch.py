"""Build batches for a GPU one step ahead, in a thread and in page-locked memory."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager
from functools import partial
from typing import Any

import torch
from torch import Tensor

from lra_bench.contracts import Batch
from lra_bench.data.columns import Integers

DEPTH = 2
"""Number of batches that are built in advance."""


def builds_ahead(device: torch.device) -> bool:
    """Return whether batches are built in a thread. On a CPU it would take cores from the computation."""
    return device.type == "cuda"


@contextmanager
def ahead(batches: Callable[[int], Batch], device: torch.device, stop: int) -> Iterator[Callable[[int], Batch]]:
    """Yield a function that returns the same batches as ``batches``, on a GPU built in advance for following steps.

    Args:
        batches: Function from the step to its batch, which depends on nothing else. It is called in one thread only,
            for each step once, in the order of the steps.
        device: The device of the computation. Batches for a GPU are in page-locked memory, so that ``Batch.to`` does
            not wait for the copy.
        stop: No batch is built for this step or a later one.
    """
    if not builds_ahead(device):
        yield batches
        return
    with _Builder(lambda step: _pinned(batches(step), device), device, stop) as built:
        yield built


def ahead_of(parts: Iterator[tuple[Integers, Batch]], device: torch.device) -> Iterator[tuple[Integers, Batch]]:
    """Yield the indices and batches of ``parts``, on a GPU built in advance and in page-locked memory."""
    if not builds_ahead(device):
        yield from parts
        return

    def build(_: int) -> tuple[Integers, Batch] | None:
        part = next(parts, None)
        return None if part is None else (part[0], _pinned(part[1], device))

    number = 0
    with _Builder(build, device) as built:
        while (part := built(number)) is not None:
            yield part
            number += 1


class _Builder:
    """Calls ``build`` in a thread for ``DEPTH`` numbers in advance; a context manager, which ends the thread.

    Exceptions of ``build`` are raised by the call with their number.
    """

    def __init__(self, build: Callable[[int], Any], device: torch.device, stop: int | None = None) -> None:
        self.build, self.stop = build, stop
        # A thread begins with the first GPU as the current one, whatever that of the process is.
        prepare = partial(torch.cuda.set_device, device) if device.type == "cuda" else None
        self._thread = ThreadPoolExecutor(1, "batches", prepare)
        self._pending: dict[int, Future[Any]] = {}

    def __call__(self, number: int) -> Any:
        """Return ``build(number)``."""
        last = number + DEPTH if self.stop is None else min(number + DEPTH, self.stop - 1)
        for each in range(number, max(number, last) + 1):
            if each not in self._pending:
                self._pending[each] = self._thread.submit(self.build, each)
        return self._pending.pop(number).result()

    def __enter__(self) -> _Builder:
        return self

    def __exit__(self, *_: object) -> None:
        """Wait for the batch that is being built and drop the others."""
        self._thread.shutdown(wait=True, cancel_futures=True)


def _pinned(batch: Batch, device: torch.device) -> Batch:
    """Return a copy of the batch in page-locked memory if the device is a GPU."""
    return batch._map(Tensor.pin_memory) if device.type == "cuda" else batch
