"""How much the largest tensor of a computation holds, which shows a hidden N x N whatever its name."""

import itertools
import math

import torch
from torch.multiprocessing.reductions import StorageWeakRef
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

# These ask for room in bytes and keep numbers of single precision there.
IN_BYTES = {torch.ops.aten.mkldnn_rnn_layer.default}


class LargestStorage(TorchDispatchMode):
    """Notes the largest storage, in elements, that any operator returns, backward pass included."""

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
    """Elements of the largest storage while ``run()`` computes a tensor and differentiates its sum."""
    with LargestStorage() as probe:
        run().sum().backward()
    return probe.elements


def exponents(run_at, lengths):
    """Growth exponents between neighbouring lengths, and the elements at each."""
    sizes = [largest_storage(lambda n=n: run_at(n)) for n in lengths]
    pairs = zip(itertools.pairwise(sizes), itertools.pairwise(lengths), strict=True)
    return [math.log(b / a) / math.log(m / n) for (a, b), (n, m) in pairs], sizes


class HeldStorages(TorchDispatchMode):
    """Notes every storage that an operator returns, to tell which are still held."""

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
    """Bytes that are held between the passes of ``run()``, of whatever was computed in the first."""
    return _held(run)[0]


def largest_and_held(run):
    """``largest_storage`` and ``held_for_backward`` of the same passes."""
    with LargestStorage() as probe:
        held, result = _held(run)
        result.sum().backward()
    return probe.elements, held


def _held(run):
    with HeldStorages() as probe:
        result = run()
    assert result.requires_grad
    return sum(size for storage, size in probe.bytes.items() if not storage.expired()), result
