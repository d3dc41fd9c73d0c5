"""Read pickles of arrays without executing any function or class that they name."""

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
"""Largest accepted number of pickle operations, far above that of official data; each can use about 100 bytes."""

MOST_DIMENSIONS = 32
"""Largest accepted number of dimensions of an array."""


def load_arrays(content: bytes, where: str) -> Any:
    """Load a pickle of arrays of numbers, dicts, lists, tuples, bytes, strings and integers.

    Strings of Python 2 become bytes. Arrays share memory with the pickle and are read-only. numpy's constructors are
    replaced by classes that only store shape, type and bytes; all other names are refused before anything is executed.
    Sizes that the pickle claims do not determine allocations.

    Args:
        content: The pickle.
        where: Name of the file, for error messages.

    Returns:
        The loaded object.

    Raises:
        UserError: If the pickle contains anything else, is truncated or damaged.
    """
    try:
        return _plain(_Reader(content).load(), {})
    except _Refused as error:
        raise UserError(f"task.source: {where} is refused, as it {error}") from None
    except Exception as error:  # unpickling damaged bytes can raise any exception
        raise UserError(f"task.source: {where} is not a pickle or is damaged ({type(error).__name__})") from error


class _Refused(Exception):
    """A pickle contains something other than the supported types."""


class _Name:
    """The name of a class, as an argument of a call in a numpy pickle; it cannot be called."""

    __slots__ = ("name",)

    def __init__(self, name: str) -> None:
        self.name = name


class _Type:
    """Replacement of ``numpy.dtype`` that stores kind, width and byte order of a number."""

    __slots__ = ("code", "order")

    def __init__(self, code: Any, *_: Any) -> None:
        text = _short_text(code)
        if not re.fullmatch(r"[?biufc]\d{0,2}", text):
            raise _Refused(f"contains an array of {text!r} instead of numbers")
        self.code, self.order = text, "="

    def __setstate__(self, state: Any) -> None:
        order = _short_text(state[1])
        if order not in ("<", ">", "=", "|"):
            raise ValueError(f"byte order {order!r}")
        self.order = order

    def actual(self) -> np.dtype[Any]:
        return np.dtype(self.order + self.code)


def _short_text(value: Any) -> str:
    """Return the first 20 characters of a string, or the type name of any other value, whose text could be long."""
    if isinstance(value, bytes):
        return value[:20].decode("ascii", "replace")
    return value[:20] if isinstance(value, str) else type(value).__name__


class _Array:
    """Replacement of an array, which pickles create empty and fill later."""

    __slots__ = ("array",)

    def __init__(self) -> None:
        self.array: NDArray[Any] | None = None

    def __setstate__(self, state: Any) -> None:
        _, shape, dtype, fortran, content = state
        self.fill(content, dtype, shape, "F" if fortran else "C")

    def fill(self, content: Any, dtype: Any, shape: Any, order: Any) -> None:
        if not isinstance(dtype, _Type) or not isinstance(content, bytes | bytearray):
            raise _Refused("contains an array of something other than numbers")
        actual = dtype.actual()
        if type(shape) is not tuple or len(shape) > MOST_DIMENSIONS:
            raise ValueError("an array has an invalid shape")
        if not all(type(size) is int and 0 <= size <= sys.maxsize for size in shape):
            raise ValueError("an array has an invalid shape")
        if len(content) != math.prod(shape) * actual.itemsize:
            raise ValueError("the size of an array does not match its shape")
        array = np.frombuffer(content, dtype=actual).reshape(shape, order="F" if order in ("F", b"F") else "C")
        array.flags.writeable = False
        self.array = array


class _Call:
    """Replacement of a function that numpy pickles call."""

    __slots__ = ("_replacement",)

    def __init__(self, answer: Any) -> None:
        self._replacement = answer

    def __call__(self, *arguments: Any) -> Any:
        return self._replacement(*arguments)


def _reconstruct(kind: Any, *_: Any) -> _Array:
    if not (isinstance(kind, _Name) and kind.name == "ndarray"):
        raise _Refused("creates an array of another class")
    return _Array()


def _from_buffer(content: Any, dtype: Any, shape: Any, order: Any) -> _Array:
    array = _Array()
    array.fill(content, dtype, shape, order)
    return array


def _nothing() -> bytes:
    """Return empty bytes, which protocols 0 to 2 write as a call of ``bytes``."""
    return b""


class _Operations(dict[int, Callable[[Any], None]]):
    """Handlers of pickle operations by code; raises ``_Refused`` after ``MOST_OPERATIONS`` lookups."""

    def __init__(self, known: Mapping[int, Callable[[Any], None]]) -> None:
        super().__init__(known)
        self.left = MOST_OPERATIONS

    def __getitem__(self, code: int) -> Callable[[Any], None]:
        self.left -= 1
        if self.left < 0:
            raise _Refused(f"has more than {MOST_OPERATIONS:,} operations")
        return super().__getitem__(code)


class _Reader(pickle._Unpickler):
    """An unpickler that only supports the functions and classes of pickled numpy arrays.

    Unlike the C implementation, it allocates no memory from sizes or memo indices that the pickle claims.
    """

    def __init__(self, content: bytes) -> None:
        super().__init__(io.BytesIO(content), encoding="bytes")
        self.dispatch = _Operations(_HANDLERS)  # type: ignore[misc]
        self.left_to_encode = len(content)

    def find_class(self, module: str, name: str) -> Any:
        # numpy 2 renamed numpy.core to numpy._core; both names occur in pickles.
        full_name = f"{module.replace('numpy.core.', 'numpy._core.', 1)}.{name}"
        if full_name == "numpy.ndarray":
            return _Name(name)
        replacements = {
            "numpy.dtype": _Type,
            "numpy._core.multiarray._reconstruct": _reconstruct,
            "numpy._core.numeric._frombuffer": _from_buffer,
            "_codecs.encode": self._encode,
            "__builtin__.bytes": _nothing,
        }
        if full_name not in replacements:
            raise _Refused(f"calls {module}.{name}")
        return _Call(replacements[full_name])

    def _encode(self, text: Any, encoding: Any) -> bytes:
        """Return bytes from the call of ``codecs.encode`` by which Python 3 writes them in protocols 0 to 2."""
        if not isinstance(text, str) or encoding not in ("latin1", b"latin1"):
            raise _Refused("encodes something other than bytes")
        self.left_to_encode -= len(text)
        if self.left_to_encode < 0:
            raise _Refused("encodes more bytes than it contains")
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
        raise ValueError("an item is appended to something other than a list")
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
        raise ValueError("an item is stored in something other than a dict")
    for name, value in zip(items[::2], items[1::2], strict=True):
        # Hashing nested tuples can take unlimited time or overflow the stack.
        if type(name) not in (bytes, str, int, bool):
            raise _Refused(f"contains a {type(name).__name__.lstrip('_').lower()} as the key of a dict")
        stack[-1][name] = value


def _load_build(reader: Any) -> None:
    state = reader.stack.pop()
    if not isinstance(reader.stack[-1], _Array | _Type):
        raise _Refused("creates an object of another class")
    reader.stack[-1].__setstate__(state)


def _refuse_object(reader: Any) -> None:
    raise _Refused("creates an object of another class")


def _refuse_set(reader: Any) -> None:
    raise _Refused("contains a set")


def _handlers() -> dict[int, Callable[[Any], None]]:
    """Return the handlers of the supported operations.

    Python's handlers are used unless they can allocate more memory than the pickle's size.
    """
    unchanged = (
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
    replaced = {
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
    default: Mapping[int, Any] = pickle._Unpickler.dispatch
    return {code[0]: default[code[0]] for code in unchanged} | {code[0]: handler for code, handler in replaced.items()}


_HANDLERS = _handlers()


def _plain(value: Any, known: dict[int, Any]) -> Any:
    """Return ``value`` with replacements converted to arrays; objects that occur repeatedly are converted once."""
    if isinstance(value, _Array) and value.array is not None:
        return value.array
    if type(value) in (bytes, str, int, bool):
        return value
    if id(value) in known:
        return known[id(value)]
    converted: Any
    if type(value) is dict:
        converted = {_plain(key, known): _plain(entry, known) for key, entry in value.items()}
    elif type(value) in (list, tuple):
        converted = type(value)(_plain(entry, known) for entry in value)
    else:
        raise _Refused(f"contains a {type(value).__name__.lstrip('_').lower()}")
    known[id(value)] = converted
    return converted
