"""Kernels that tell who watches torch's functions that they ran."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import ParamSpec, TypeVar

from torch import Tensor
from torch.overrides import handle_torch_function, has_torch_function

P = ParamSpec("P")
R = TypeVar("R")


def attention_backend(name: str) -> Callable[[Callable[P, R]], Callable[P, R]]:
    """Name a kernel of attention, so that a measurement can say through which one a model went.

    The kernel's first arguments are tensors. A ``TorchFunctionMode`` sees the call, with ``name`` as its attribute
    ``attention_backend``; without one the kernel runs as it is.
    """

    def mark(kernel: Callable[P, R]) -> Callable[P, R]:
        @functools.wraps(kernel)
        def named(*args: P.args, **options: P.kwargs) -> R:
            tensors = tuple(each for each in args if isinstance(each, Tensor))
            if has_torch_function(tensors):
                return handle_torch_function(named, tensors, *args, **options)
            return kernel(*args, **options)

        vars(named)["attention_backend"] = name
        return named

    return mark
