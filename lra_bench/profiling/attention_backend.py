"""Detect the attention kernels that a step runs, by tracing one forward pass."""

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
    """Return a context manager that selects torch's math backend for attention if ``backend`` is ``math``."""
    return sdpa_kernel(SDPBackend.MATH) if backend == MATH else nullcontext()


def attention_backend(model: nn.Module, batch: Batch, hardware: Hardware) -> str | None:
    """Return the attention backends that a forward pass of ``model`` uses, in its current mode.

    Names are ``fused`` or ``math`` on a CPU, ``flash``, ``efficient``, ``cudnn`` or ``math`` on CUDA, and
    ``overrideable`` on other devices. A called function with an attribute ``attention_backend`` contributes the value
    of that attribute, whether it computes exact attention or belongs to another package. Several names are joined by a
    plus sign. None if no known kernel ran: the model has another kind of attention, or none.
    """
    with _BackendTracer() as tracer, hardware.autocast(), torch.set_grad_enabled(model.training):
        model(batch)
    return " + ".join(sorted(tracer.names)) or None


class _BackendTracer(TorchFunctionMode):
    """Collect the names of the kernels behind each call of torch's attention."""

    def __init__(self) -> None:
        super().__init__()
        self.names: set[str] = set()

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        """Run ``func`` and record the name of its attention backend, if it has one."""
        if name := getattr(func, "attention_backend", None):
            self.names.add(name)
        if func is not F.scaled_dot_product_attention:
            return func(*args, **(kwargs or {}))
        with _KernelTracer() as kernels:
            result = func(*args, **(kwargs or {}))
        # The math backend has no separate operator: it consists of matrix products, which are not in KERNELS.
        self.names |= kernels.names or {MATH}
        return result


class _KernelTracer(TorchDispatchMode):
    """Collect the names in ``KERNELS`` of the operators that run."""

    def __init__(self) -> None:
        super().__init__()
        self.names: set[str] = set()

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if name := KERNELS.get(func.name().partition("::")[2].partition(".")[0]):
            self.names.add(name)
        return func(*args, **(kwargs or {}))
