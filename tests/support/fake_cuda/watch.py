"""Observe all operators of a step: launches, bytes, FLOPs, synchronisations with the host and copies from it."""

from __future__ import annotations

import sys
from collections import Counter
from pathlib import Path
from typing import Any

import torch
from torch import Tensor
from torch._subclasses.fake_tensor import FakeTensor
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves
from torch.utils.flop_counter import flop_registry

ROOT = Path(__file__).parents[3]
FOLDERS = tuple(f"{ROOT / folder}/" for folder in ("models", "lra_bench", "tasks"))
PLANTED = str(Path(__file__).with_name("planted.py"))

WAITING = frozenset(
    f"aten::{name}"
    for name in (
        *("_local_scalar_dense", "item", "is_nonzero", "equal"),
        *("nonzero", "masked_select", "_unique2", "unique_dim", "unique_consecutive"),
    )
)
"""Operators whose result, or its shape, the host reads."""

WITHOUT_KERNEL = frozenset(
    f"aten::{name}"
    for name in ("_unsafe_view", "empty", "empty_like", "empty_strided", "new_empty", "new_empty_strided")
)
"""Operators that launch nothing, although they are not views."""

_active: list[Watch] = []


def active() -> Watch:
    """Return the watch that was created last."""
    return _active[-1]


def site() -> str:
    """Return file, line and function of the innermost frame in the project's code, or ``elsewhere``."""
    frame = sys._getframe(1)
    while frame is not None:
        name = frame.f_code.co_filename
        if name.startswith(FOLDERS) or name == PLANTED:
            return f"{name.removeprefix(f'{ROOT}/')}:{frame.f_lineno} {frame.f_code.co_name}"
        frame = frame.f_back  # type: ignore[assignment]
    return "elsewhere"


class Watch(TorchDispatchMode):
    """Count what the operators inside the context do.

    Attributes:
        launches: Number of operators on the GPU that are not views, by name.
        waits: Synchronisations with the host, by operator and place.
        uploads: Copies from pageable host memory to the GPU, by place.
        risks: Calls of fused attention that may fail or be slow, by kind and place.
        bytes_moved: Bytes read and written, only if ``detailed``.
        flops: FLOPs of matrix products, convolutions and fused attention by type, only if ``detailed``.
        by_site: Launches by place, only if ``detailed``.
        largest: Size and description of the largest result, only if ``detailed``.
    """

    def __init__(self, detailed: bool = False) -> None:
        super().__init__()
        self.detailed = detailed
        self.launches: Counter[str] = Counter()
        self.waits: Counter[str] = Counter()
        self.uploads: Counter[str] = Counter()
        self.risks: Counter[str] = Counter()
        self.flops: Counter[str] = Counter()
        self.by_site: Counter[str] = Counter()
        self.bytes_moved = 0
        self.largest: tuple[int, str] = (0, "")
        _active[:] = [self]

    def add_flops(self, dtype: torch.dtype, flops: int) -> None:
        """Add FLOPs of an operator with inputs of type ``dtype``."""
        self.flops[str(dtype).removeprefix("torch.")] += flops

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        name = func.name().partition(".")[0]
        given = [leaf for leaf in tree_leaves((args, kwargs)) if isinstance(leaf, Tensor)]
        on_gpu = any(tensor.device.type == "cuda" for tensor in given)
        launches = not func.is_view and not name.startswith("prim") and name not in WITHOUT_KERNEL
        if on_gpu:
            self._find_wait(func, name, args, kwargs)
        if name in ("aten::_to_copy", "aten::copy_"):
            self._find_copy(name, args, kwargs)
        if name in ("aten::_local_scalar_dense", "aten::item", "aten::is_nonzero") and (
            on_gpu or isinstance(args[0], FakeTensor)
        ):
            # The step continues with some value, so that later mistakes are found, too; fake tensors have none.
            self.launches[name] += on_gpu
            dtype = args[0].dtype
            return True if dtype == torch.bool else 1.0 if dtype.is_floating_point else 8
        out = func(*args, **kwargs)
        results = [leaf for leaf in tree_leaves(out) if isinstance(leaf, Tensor)]
        if launches and (on_gpu or any(tensor.device.type == "cuda" for tensor in results)):
            self.launches[name] += 1
            if self.detailed:
                # A tensor given as out is written, and not read.
                written = kwargs.get("out")
                read = [tensor for tensor in given if tensor is not written]
                self._add_cost(func, name, args, kwargs, read, results, out)
        return out

    def _find_wait(self, func: Any, name: str, args: Any, kwargs: Any) -> None:
        if name in WAITING:
            self.waits[f"{name} ({site()})"] += 1
        if name in ("aten::index", "aten::index_put", "aten::index_put_") and any(
            index is not None and index.dtype in (torch.bool, torch.uint8) for index in args[1]
        ):
            self.waits[f"{name} with a mask ({site()})"] += 1
        if func is torch.ops.aten.repeat_interleave.Tensor and kwargs.get("output_size") is None:
            self.waits[f"{name} without output_size ({site()})"] += 1

    def _find_copy(self, name: str, args: Any, kwargs: Any) -> None:
        if name == "aten::_to_copy":
            source, non_blocking = args[0], kwargs.get("non_blocking", False)
            target = torch.device(kwargs.get("device") or source.device).type
        else:
            source, non_blocking = args[1], len(args) > 2 and args[2]
            target = args[0].device.type
        origin = source.device.type
        if (origin, target) == ("cuda", "cpu"):
            self.waits[f"copy to the host ({site()})"] += 1
        elif (origin, target) == ("cpu", "cuda") and not (non_blocking and hasattr(source, "pinned")):
            self.uploads[site()] += 1

    def _add_cost(
        self, func: Any, name: str, args: Any, kwargs: Any, given: list[Tensor], results: list[Tensor], out: Any
    ) -> None:
        # An expanded tensor is read from its storage.
        for tensor in (*given, *results):
            size = tensor.numel() * tensor.element_size()
            self.bytes_moved += tensor.untyped_storage().nbytes() if 0 in tensor.stride() else size
        where = site()
        self.by_site[where] += 1
        for result in results:
            size = result.numel() * result.element_size()
            if size > self.largest[0] and 0 not in result.stride():
                dtype = str(result.dtype).removeprefix("torch.")
                self.largest = (size, f"{name} {tuple(result.shape)} {dtype} ({where})")
        if func.overloadpacket in flop_registry:
            self.add_flops(given[0].dtype, flop_registry[func.overloadpacket](*args, **kwargs, out_val=out))
