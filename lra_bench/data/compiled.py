"""Loops compiled to machine code, for data that must be made or checked faster than Python can."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeVar

Function = TypeVar("Function", bound=Callable[..., Any])


def compiled(function: Function) -> Function:
    """Compile ``function`` with numba: without Python objects, without the interpreter lock, kept on disk.

    The machine code is kept beside the source, else in the user's cache folder; where neither can be written,
    each process compiles for itself.
    """
    return _compile(function)


def arithmetic(function: Function) -> Function:
    """``compiled``, for loops over arrays that the processor is to compute several elements of at once.

    A quotient by zero is infinite, as in numpy, and raises nothing; a product may be added without rounding it first.
    """
    return _compile(function, error_model="numpy", fastmath={"contract"})


def _compile(function: Function, **options: Any) -> Function:
    import numba

    try:
        return numba.njit(nogil=True, cache=True, **options)(function)
    except RuntimeError:  # numba found no folder that it may write to
        return numba.njit(nogil=True, **options)(function)
