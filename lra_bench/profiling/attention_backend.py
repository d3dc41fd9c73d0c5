"""Which kernels of attention a step runs, found by watching one forward pass."""

from __future__ import annotations

from contextlib import AbstractContextManager, nullcontext
from typing import Any

import torch
import torch.nn.functional as F
from torch import nn
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.overrides import TorchFunctionMode
from torch.utils._python_dispatch import TorchDispatchMode

from lra_bench.contracts import Batch
from lra_bench.runtime.hardware import Hardware

MATH = "math"
KERNELS = {
    "_scaled_dot_product_flash_attention_for_cpu": "fused",
    "_scaled_dot_product_flash_attention": "flash",
    "_scaled_dot_product_efficient_attention": "efficient",
    "_scaled_dot_product_cudnn_attention": "cudnn",
    "_scaled_dot_product_fused_attention_overrideable": "overrideable",
}


def forced(backend: str | None) -> AbstractContextManager[Any]:
    """Everything inside runs torch's attention by its plain matrix form where ``backend`` is ``math``."""
    return sdpa_kernel(SDPBackend.MATH) if backend == MATH else nullcontext()


def attention_backend(model: nn.Module, batch: Batch, hardware: Hardware) -> str | None:
    """The back-ends that attention goes through in a forward pass of ``model``, in the mode that it is in.

    ``fused`` or ``math`` on a CPU, ``flash``, ``efficient``, ``cudnn`` or ``math`` on CUDA; a kernel of another name
    where a function says so by its attribute ``attention_backend``, be it of exact attention or of another package.
    Several are joined by a plus. None where nothing was seen: the model has attention of its own kind, or none.
    """
    with _Watch() as watch, hardware.autocast(), torch.set_grad_enabled(model.training):
        model(batch)
    return " + ".join(sorted(watch.names)) or None


class _Watch(TorchFunctionMode):
    """Names of the kernels behind each call of torch's attention."""

    def __init__(self) -> None:
        super().__init__()
        self.names: set[str] = set()

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        """Run ``func``, and note what it was."""
        if name := getattr(func, "attention_backend", None):
            self.names.add(name)
        if func is not F.scaled_dot_product_attention:
            return func(*args, **(kwargs or {}))
        with _Kernels() as kernels:
            result = func(*args, **(kwargs or {}))
        # The plain form is no operator of its own: it falls into products that no kernel of the list stands for.
        self.names |= kernels.names or {MATH}
        return result


class _Kernels(TorchDispatchMode):
    def __init__(self) -> None:
        super().__init__()
        self.names: set[str] = set()

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if name := KERNELS.get(func.name().partition("::")[2].partition(".")[0]):
            self.names.add(name)
        return func(*args, **(kwargs or {}))
