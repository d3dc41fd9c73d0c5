"""Named attention kernels, which a ``TorchFunctionMode`` can observe."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import ParamSpec, TypeVar

from torch import Tensor
from torch.overrides import handle_torch_function, has_torch_function

P = ParamSpec("P")
R = TypeVar("R")


def attention_backend(name: str) -> Callable[[Callable[P, R]], Callable[P, R]]:
    """Return a decorator that names an attention kernel, so that a measurement can report which kernel a model uses.

    Positional arguments of the kernel that are tensors are checked for ``__torch_function__``. A ``TorchFunctionMode``
    receives the call of a function whose attribute ``attention_backend`` is ``name``; without such a mode the kernel is
    called directly.
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
