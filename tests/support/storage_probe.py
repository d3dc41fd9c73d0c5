"""Size of the largest storage of a computation, to detect quadratic tensors."""

import itertools
import math

import torch
from torch.multiprocessing.reductions import StorageWeakRef
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

# Operators that allocate uint8 tensors and store float32 numbers in them.
IN_BYTES = {torch.ops.aten.mkldnn_rnn_layer.default}


class LargestStorage(TorchDispatchMode):
    """Records the largest storage, in elements, that any operator returns, including the backward pass."""

    def __init__(self):
        super().__init__()
        self.elements = 0

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        result = func(*args, **(kwargs or {}))
        for leaf in tree_leaves(result):
            if isinstance(leaf, torch.Tensor):
                size = 4 if func in IN_BYTES and leaf.dtype == torch.uint8 else leaf.element_size()
                self.elements = max(self.elements, leaf.untyped_storage().nbytes() // size)
        return result


def largest_storage(run):
    """Return the number of elements of the largest storage in the forward and backward pass of ``run().sum()``."""
    with LargestStorage() as probe:
        run().sum().backward()
    return probe.elements


def exponents(run_at, lengths):
    """Return the growth exponents between consecutive lengths, and the number of elements at each length."""
    sizes = [largest_storage(lambda n=n: run_at(n)) for n in lengths]
    pairs = zip(itertools.pairwise(sizes), itertools.pairwise(lengths), strict=True)
    return [math.log(b / a) / math.log(m / n) for (a, b), (n, m) in pairs], sizes


class HeldStorages(TorchDispatchMode):
    """Records every storage that an operator returns, to find those that are still allocated."""

    def __init__(self):
        super().__init__()
        self.bytes = {}

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        result = func(*args, **(kwargs or {}))
        for leaf in tree_leaves(result):
            if isinstance(leaf, torch.Tensor):
                storage = leaf.untyped_storage()
                self.bytes[StorageWeakRef(storage)] = storage.nbytes()
        return result


def held_for_backward(run):
    """Return the bytes of storages computed in the forward pass of ``run()`` that are stored for the backward pass."""
    return _forward(run)[0]


def largest_and_held(run):
    """Return the values of ``largest_storage`` and ``held_for_backward`` for the same passes."""
    with LargestStorage() as probe:
        held, result = _forward(run)
        result.sum().backward()
    return probe.elements, held


def _forward(run):
    with HeldStorages() as probe:
        result = run()
    assert result.requires_grad
    return sum(size for storage, size in probe.bytes.items() if not storage.expired()), result
