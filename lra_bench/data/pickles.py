"""Pickles of arrays, read without running anything that they name."""

from __future__ import annotations

import io
import math
import pickle
import re
from typing import Any

import numpy as np
from numpy.typing import NDArray

from lra_bench.errors import UserError


def load_arrays(content: bytes, where: str) -> Any:
    """What a pickle holds, if that is arrays of numbers, dicts, lists, tuples, bytes, strings and integers alone.

    Strings of Python 2 become bytes. Arrays share the pickle's memory and cannot be written to. What numpy names in a
    pickle is answered by stand-ins that only note down shape, type and bytes; any other name is refused before anything
    happens. Raises ``UserError``, with ``where`` in it, for what is refused, cut short or damaged.
    """
    try:
        return _plain(_Reader(io.BytesIO(content), encoding="bytes").load(), {})
    except _Refused as error:
        raise UserError(f"task.source: {where} is refused, as it {error}") from None
    except Exception as error:  # unpickling damaged bytes can raise anything
        raise UserError(f"task.source: {where} is no pickle, or a damaged one ({type(error).__name__})") from error


class _Refused(Exception):
    """What a pickle of data has no business with."""


class _Name:
    """A class that numpy names in a pickle, as the argument of a call; it cannot be called."""

    __slots__ = ("name",)

    def __init__(self, name: str) -> None:
        self.name = name


class _Type:
    """Stands in for ``numpy.dtype``: a number's kind and width, then its byte order."""

    __slots__ = ("code", "order")

    def __init__(self, code: Any, *_: Any) -> None:
        text = code.decode("ascii", "replace") if isinstance(code, bytes) else str(code)
        if not re.fullmatch(r"[?biufc]\d{0,2}", text):
            raise _Refused(f"holds an array of {text!r} instead of numbers")
        self.code, self.order = text, "="

    def __setstate__(self, state: Any) -> None:
        order = state[1].decode() if isinstance(state[1], bytes) else str(state[1])
        if order not in ("<", ">", "=", "|"):
            raise ValueError(f"byte order {order!r}")
        self.order = order

    def actual(self) -> np.dtype[Any]:
        return np.dtype(self.order + self.code)


class _Array:
    """Stands in for an array between its making and its filling."""

    __slots__ = ("array",)

    def __init__(self) -> None:
        self.array: NDArray[Any] | None = None

    def __setstate__(self, state: Any) -> None:
        _, shape, dtype, fortran, content = state
        self.fill(content, dtype, shape, "F" if fortran else "C")

    def fill(self, content: Any, dtype: Any, shape: Any, order: Any) -> None:
        if not isinstance(dtype, _Type) or not isinstance(content, bytes | bytearray):
            raise _Refused("holds an array of something else than numbers")
        actual = dtype.actual()
        if not all(type(size) is int and size >= 0 for size in shape):
            raise ValueError("the shape of an array is none")
        if len(content) != math.prod(shape) * actual.itemsize:
            raise ValueError("an array is longer or shorter than its shape")
        array = np.frombuffer(content, dtype=actual).reshape(shape, order="F" if order in ("F", b"F") else "C")
        array.flags.writeable = False
        self.array = array


class _Call:
    """Stands in for a function that numpy's pickles call."""

    __slots__ = ("_answer",)

    def __init__(self, answer: Any) -> None:
        self._answer = answer

    def __call__(self, *arguments: Any) -> Any:
        return self._answer(*arguments)


def _reconstruct(kind: Any, *_: Any) -> _Array:
    if not (isinstance(kind, _Name) and kind.name == "ndarray"):
        raise _Refused("makes an array of a class of its own")
    return _Array()


def _from_buffer(content: Any, dtype: Any, shape: Any, order: Any) -> _Array:
    array = _Array()
    array.fill(content, dtype, shape, order)
    return array


def _encode(text: Any, encoding: Any) -> bytes:
    """Bytes as Python 3 writes them in the protocols of Python 2."""
    if not isinstance(text, str) or encoding not in ("latin1", b"latin1"):
        raise _Refused("encodes something else than bytes")
    return text.encode("latin-1")


def _nothing() -> bytes:
    """No bytes at all, which those protocols cannot write either."""
    return b""


class _Reader(pickle.Unpickler):
    """An unpickler that knows what numpy's arrays are made with, and nothing else."""

    def find_class(self, module: str, name: str) -> Any:
        # numpy 2 renamed numpy.core to numpy._core; pickles of both are about.
        place = f"{module.replace('numpy.core.', 'numpy._core.', 1)}.{name}"
        if place == "numpy.ndarray":
            return _Name(name)
        answers = {
            "numpy.dtype": _Type,
            "numpy._core.multiarray._reconstruct": _reconstruct,
            "numpy._core.numeric._frombuffer": _from_buffer,
            "_codecs.encode": _encode,
            "__builtin__.bytes": _nothing,
        }
        if place not in answers:
            raise _Refused(f"calls {module}.{name}")
        return _Call(answers[place])


def _plain(value: Any, known: dict[int, Any]) -> Any:
    """``value`` with arrays in place of their stand-ins; what occurs twice is one object again."""
    if isinstance(value, _Array) and value.array is not None:
        return value.array
    if type(value) in (bytes, str, int, bool):
        return value
    if id(value) in known:
        return known[id(value)]
    made: Any
    if type(value) is dict:
        made = {_plain(key, known): _plain(entry, known) for key, entry in value.items()}
    elif type(value) in (list, tuple):
        made = type(value)(_plain(entry, known) for entry in value)
    else:
        raise _Refused(f"holds a {type(value).__name__.lstrip('_').lower()}")
    known[id(value)] = made
    return made
