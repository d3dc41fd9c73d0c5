"""Elements that a computation allocates and produces, to detect quadratic tensors and their cost."""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor
from torch.multiprocessing.reductions import StorageWeakRef
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

# Operators that allocate uint8 tensors and store float32 numbers in them.
IN_BYTES = {torch.ops.aten.mkldnn_rnn_layer.default}


class Storages(TorchDispatchMode):
    """Record the size, in elements, of the largest storage among the results of each operator.

    The backward pass is included.

    Attributes:
        sizes: Number of elements for each operator, in the order of their execution.
        produced: Number of elements of all results, those of a view only if it covers less than its storage.
    """

    def __init__(self) -> None:
        super().__init__()
        self.sizes: list[int] = []
        self.produced = 0

    @property
    def largest(self) -> int:
        """Number of elements of the largest storage."""
        return max(self.sizes, default=0)

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        """Run the operator and record the largest storage of its results."""
        result = func(*args, **(kwargs or {}))
        sizes = [0]
        for leaf in tree_leaves(result):
            if isinstance(leaf, Tensor):
                size = 4 if func in IN_BYTES and leaf.dtype == torch.uint8 else leaf.element_size()
                sizes.append(leaf.untyped_storage().nbytes() // size)
                self.produced += min(leaf.numel(), sizes[-1])
        self.sizes.append(max(sizes))
        return result


def storages(run: Callable[..., Tensor]) -> Storages:
    """Return the storages in the forward and backward pass of ``run().sum()``."""
    with Storages() as probe:
        run().sum().backward()
    return probe


def largest_storage(run: Callable[..., Tensor]) -> int:
    """Return the number of elements of the largest storage in the forward and backward pass of ``run().sum()``."""
    return storages(run).largest


def exponents(run_at: Callable[[int], Tensor], lengths: Sequence[int]) -> tuple[list[float], list[int]]:
    """Return the growth exponents between consecutive lengths, and the number of elements at each length."""
    sizes = [largest_storage(lambda n=n: run_at(n)) for n in lengths]
    pairs = zip(itertools.pairwise(sizes), itertools.pairwise(lengths), strict=True)
    return [math.log(b / a) / math.log(m / n) for (a, b), (n, m) in pairs], sizes


class HeldStorages(TorchDispatchMode):
    """Record every storage that an operator returns, to find those that are still allocated."""

    def __init__(self) -> None:
        super().__init__()
        self.bytes: dict[StorageWeakRef, int] = {}

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        """Run the operator and record the storages of its results."""
        result = func(*args, **(kwargs or {}))
        for leaf in tree_leaves(result):
            if isinstance(leaf, Tensor):
                storage = leaf.untyped_storage()
                self.bytes[StorageWeakRef(storage)] = storage.nbytes()
        return result


def held_for_backward(run: Callable[..., Tensor]) -> int:
    """Return the bytes of storages computed in the forward pass of ``run()`` that are stored for the backward pass."""
    return _forward(run)[0]


def largest_and_held(run: Callable[..., Tensor]) -> tuple[int, int]:
    """Return the values of ``largest_storage`` and ``held_for_backward`` for the same passes."""
    with Storages() as probe:
        held, result = _forward(run)
        result.sum().backward()
    return probe.largest, held


def _forward(run: Callable[..., Tensor]) -> tuple[int, Tensor]:
    with HeldStorages() as probe:
        result = run()
    assert result.requires_grad
    return sum(size for storage, size in probe.bytes.items() if not storage.expired()), result
