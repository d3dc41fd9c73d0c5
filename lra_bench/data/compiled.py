"""Loops compiled with numba, for generating and checking data."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeVar

Function = TypeVar("Function", bound=Callable[..., Any])


def compiled(function: Function) -> Function:
    """Compile ``function`` with numba in nopython mode, releasing the interpreter lock, with an on-disk cache.

    The machine code is cached next to the source, otherwise in the user's cache folder. If neither can be written,
    every process compiles the function.
    """
    return _compile(function)


def arithmetic(function: Function) -> Function:
    """Compile ``function`` like ``compiled``, with settings that allow vectorised loops over arrays.

    Division by zero gives infinity, as in numpy, instead of an error. Fused multiply-add is allowed, which omits the
    rounding of the product.
    """
    return _compile(function, error_model="numpy", fastmath={"contract"})


def _compile(function: Function, **options: Any) -> Function:
    import numba

    try:
        return numba.njit(nogil=True, cache=True, **options)(function)
    except RuntimeError:  # numba found no writable cache folder
        return numba.njit(nogil=True, **options)(function)
