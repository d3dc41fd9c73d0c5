"""Kernels that tell who watches torch's functions that they ran."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import ParamSpec

from torch import Tensor
from torch.overrides import handle_torch_function, has_torch_function

P = ParamSpec("P")


def attention_backend(name: str) -> Callable[[Callable[P, Tensor]], Callable[P, Tensor]]:
    """Name a kernel of exact attention, so that a measurement can say through which one a model went.

    The kernel's first arguments are tensors. A ``TorchFunctionMode`` sees the call, with ``name`` as its attribute
    ``attention_backend``; without one the kernel runs as it is.
    """

    def mark(kernel: Callable[P, Tensor]) -> Callable[P, Tensor]:
        @functools.wraps(kernel)
        def named(*args: P.args, **options: P.kwargs) -> Tensor:
            tensors = tuple(each for each in args if isinstance(each, Tensor))
            if has_torch_function(tensors):
                return handle_torch_function(named, tensors, *args, **options)
            return kernel(*args, **options)

        vars(named)["attention_backend"] = name
        return named

    return mark
