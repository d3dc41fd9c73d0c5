"""Measure how the memory of a computation grows with its length, and what it keeps for the backward pass."""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Sequence
from typing import Any

from torch import Tensor
from torch.multiprocessing.reductions import StorageWeakRef
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

from lra_bench.checks.storage import Storages, storages


def largest_storage(run: Callable[..., Tensor]) -> int:
    """Return the number of elements of the largest storage in the forward and backward pass of ``run().sum()``."""
    return max(storages(run).sizes)


def exponents(run_at: Callable[[int], Tensor], lengths: Sequence[int]) -> tuple[list[float], list[int]]:
    """Return the growth exponents between consecutive lengths, and the number of elements at each length."""
    sizes = [largest_storage(lambda n=n: run_at(n)) for n in lengths]
    pairs = zip(itertools.pairwise(sizes), itertools.pairwise(lengths), strict=True)
    return [math.log(b / a) / math.log(m / n) for (a, b), (n, m) in pairs], sizes


class HeldStorages(TorchDispatchMode):
    """Record the sizes of the storages that operators return, to sum those that are not freed."""

    def __init__(self) -> None:
        super().__init__()
        self.bytes: dict[StorageWeakRef, int] = {}

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        """Run the operator and record the storages of its outputs."""
        result = func(*args, **(kwargs or {}))
        for leaf in tree_leaves(result):
            if isinstance(leaf, Tensor):
                storage = leaf.untyped_storage()
                self.bytes[StorageWeakRef(storage)] = storage.nbytes()
        return result


def held_for_backward(run: Callable[..., Tensor]) -> int:
    """Return the number of bytes that the forward pass of ``run()`` keeps for the backward pass."""
    return _forward(run)[0]


def largest_and_held(run: Callable[..., Tensor]) -> tuple[int, int]:
    """Return ``largest_storage(run)`` and ``held_for_backward(run)`` with a single call of ``run``."""
    with Storages() as probe:
        held, result = _forward(run)
        result.sum().backward()
    return max(probe.sizes), held


def _forward(run: Callable[..., Tensor]) -> tuple[int, Tensor]:
    with HeldStorages() as probe:
        result = run()
    assert result.requires_grad
    return sum(size for storage, size in probe.bytes.items() if not storage.expired()), result
