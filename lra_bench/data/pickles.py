"""Pickles of arrays, read without running anything that they name."""

from __future__ import annotations

import io
import math
import pickle
import re
import struct
import sys
from collections.abc import Callable, Mapping
from typing import Any

import numpy as np
from numpy.typing import NDArray

from lra_bench.errors import UserError

MOST_OPERATIONS = 4_000_000
"""More than the largest official batch takes by far; each can take about a hundred bytes of memory."""

MOST_DIMENSIONS = 32


def load_arrays(content: bytes, where: str) -> Any:
    """What a pickle holds, if that is arrays of numbers, dicts, lists, tuples, bytes, strings and integers alone.

    Strings of Python 2 become bytes. Arrays share the pickle's memory and cannot be written to. What numpy names in a
    pickle is answered by stand-ins that only note down shape, type and bytes; any other name is refused before anything
    happens. No memory is allocated by a size that the pickle only announces. Raises ``UserError``, with ``where`` in
    it, for what is refused, cut short or damaged.
    """
    try:
        return _plain(_Reader(content).load(), {})
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
        text = _short_text(code)
        if not re.fullmatch(r"[?biufc]\d{0,2}", text):
            raise _Refused(f"holds an array of {text!r} instead of numbers")
        self.code, self.order = text, "="

    def __setstate__(self, state: Any) -> None:
        order = _short_text(state[1])
        if order not in ("<", ">", "=", "|"):
            raise ValueError(f"byte order {order!r}")
        self.order = order

    def actual(self) -> np.dtype[Any]:
        return np.dtype(self.order + self.code)


def _short_text(value: Any) -> str:
    """The first characters of a name; the text of anything else could be of any length."""
    if isinstance(value, bytes):
        return value[:20].decode("ascii", "replace")
    return value[:20] if isinstance(value, str) else type(value).__name__


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
        if type(shape) is not tuple or len(shape) > MOST_DIMENSIONS:
            raise ValueError("the shape of an array is none")
        if not all(type(size) is int and 0 <= size <= sys.maxsize for size in shape):
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


def _nothing() -> bytes:
    """No bytes at all, which those protocols cannot write either."""
    return b""


class _Operations(dict[int, Callable[[Any], None]]):
    """The operations of a pickle by code; asking for more than ``MOST_OPERATIONS`` of them is refused."""

    def __init__(self, known: Mapping[int, Callable[[Any], None]]) -> None:
        super().__init__(known)
        self.left = MOST_OPERATIONS

    def __getitem__(self, code: int) -> Callable[[Any], None]:
        self.left -= 1
        if self.left < 0:
            raise _Refused(f"has more than {MOST_OPERATIONS:,} operations")
        return super().__getitem__(code)


class _Reader(pickle._Unpickler):
    """An unpickler that knows what numpy's arrays are made with, and nothing else.

    Unlike the one in C it allocates nothing by a size or a number that the pickle merely announces.
    """

    def __init__(self, content: bytes) -> None:
        super().__init__(io.BytesIO(content), encoding="bytes")
        self.dispatch = _Operations(_HANDLERS)  # type: ignore[misc]
        self.left_to_encode = len(content)

    def find_class(self, module: str, name: str) -> Any:
        # numpy 2 renamed numpy.core to numpy._core; pickles of both are about.
        place = f"{module.replace('numpy.core.', 'numpy._core.', 1)}.{name}"
        if place == "numpy.ndarray":
            return _Name(name)
        answers = {
            "numpy.dtype": _Type,
            "numpy._core.multiarray._reconstruct": _reconstruct,
            "numpy._core.numeric._frombuffer": _from_buffer,
            "_codecs.encode": self._encode,
            "__builtin__.bytes": _nothing,
        }
        if place not in answers:
            raise _Refused(f"calls {module}.{name}")
        return _Call(answers[place])

    def _encode(self, text: Any, encoding: Any) -> bytes:
        """Bytes as Python 3 writes them in the protocols of Python 2."""
        if not isinstance(text, str) or encoding not in ("latin1", b"latin1"):
            raise _Refused("encodes something else than bytes")
        self.left_to_encode -= len(text)
        if self.left_to_encode < 0:
            raise _Refused("encodes more bytes than it holds")
        return text.encode("latin-1")


def _load_bytearray(reader: Any) -> None:
    (size,) = struct.unpack("<Q", reader.read(8))
    reader.append(bytearray(reader.read(min(size, sys.maxsize))))


def _load_append(reader: Any) -> None:
    value = reader.stack.pop()
    _list_at_end(reader.stack).append(value)


def _load_appends(reader: Any) -> None:
    values = reader.pop_mark()
    _list_at_end(reader.stack).extend(values)


def _list_at_end(stack: list[Any]) -> list[Any]:
    if type(stack[-1]) is not list:
        raise ValueError("an entry for what is no list")
    found: list[Any] = stack[-1]
    return found


def _load_dict(reader: Any) -> None:
    items = reader.pop_mark()
    reader.append({})
    _set_items(reader.stack, items)


def _load_set_item(reader: Any) -> None:
    value, name = reader.stack.pop(), reader.stack.pop()
    _set_items(reader.stack, [name, value])


def _load_set_items(reader: Any) -> None:
    items = reader.pop_mark()
    _set_items(reader.stack, items)


def _set_items(stack: list[Any], items: list[Any]) -> None:
    if type(stack[-1]) is not dict:
        raise ValueError("an item for what is no dict")
    for name, value in zip(items[::2], items[1::2], strict=True):
        # The hash of nested tuples takes time without end, or the whole stack.
        if type(name) not in (bytes, str, int, bool):
            raise _Refused(f"names an entry by a {type(name).__name__.lstrip('_').lower()}")
        stack[-1][name] = value


def _load_build(reader: Any) -> None:
    state = reader.stack.pop()
    if not isinstance(reader.stack[-1], _Array | _Type):
        raise _Refused("makes an object of a class of its own")
    reader.stack[-1].__setstate__(state)


def _refuse_object(reader: Any) -> None:
    raise _Refused("makes an object of a class of its own")


def _refuse_set(reader: Any) -> None:
    raise _Refused("holds a set")


def _handlers() -> dict[int, Callable[[Any], None]]:
    """What each operation does: as Python does it, where that takes no more memory than the pickle is long."""
    kept = (
        *(pickle.PROTO, pickle.FRAME, pickle.STOP, pickle.MARK, pickle.POP, pickle.POP_MARK, pickle.DUP),
        *(pickle.NONE, pickle.NEWTRUE, pickle.NEWFALSE, pickle.FLOAT, pickle.BINFLOAT),
        *(pickle.INT, pickle.BININT, pickle.BININT1, pickle.BININT2, pickle.LONG, pickle.LONG1, pickle.LONG4),
        *(pickle.STRING, pickle.BINSTRING, pickle.SHORT_BINSTRING),
        *(pickle.BINBYTES, pickle.SHORT_BINBYTES, pickle.BINBYTES8),
        *(pickle.UNICODE, pickle.BINUNICODE, pickle.SHORT_BINUNICODE, pickle.BINUNICODE8),
        *(pickle.TUPLE, pickle.EMPTY_TUPLE, pickle.TUPLE1, pickle.TUPLE2, pickle.TUPLE3),
        *(pickle.LIST, pickle.EMPTY_LIST, pickle.EMPTY_DICT, pickle.GLOBAL, pickle.STACK_GLOBAL, pickle.REDUCE),
        *(pickle.PUT, pickle.BINPUT, pickle.LONG_BINPUT, pickle.MEMOIZE),
        *(pickle.GET, pickle.BINGET, pickle.LONG_BINGET),
    )
    own = {
        pickle.BYTEARRAY8: _load_bytearray,
        pickle.APPEND: _load_append,
        pickle.APPENDS: _load_appends,
        pickle.DICT: _load_dict,
        pickle.SETITEM: _load_set_item,
        pickle.SETITEMS: _load_set_items,
        pickle.BUILD: _load_build,
        **dict.fromkeys((pickle.INST, pickle.OBJ, pickle.NEWOBJ, pickle.NEWOBJ_EX), _refuse_object),
        **dict.fromkeys((pickle.EMPTY_SET, pickle.ADDITEMS, pickle.FROZENSET), _refuse_set),
    }
    given: Mapping[int, Any] = pickle._Unpickler.dispatch
    return {code[0]: given[code[0]] for code in kept} | {code[0]: handler for code, handler in own.items()}


_HANDLERS = _handlers()


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
