"""Elements that a computation allocates and produces, to detect quadratic tensors and their cost."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor
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
