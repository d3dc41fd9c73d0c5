"""Read a pickled batch without calling any function that it names."""

from __future__ import annotations

import io
import pickle
import re
from collections.abc import Callable
from functools import partial
from typing import Any

import numpy as np
from numpy.typing import NDArray

from lra_bench.contracts import UserError

LARGEST_BYTES = 256 << 20
"""Largest accepted size of a batch; an official one has 31 MB, and all pictures together 185 MB."""

MOST_OPERATIONS = 1_000_000
"""Largest accepted number of pickle operations, each of which uses at most about 300 bytes."""


def load_batch(content: bytes, where: str) -> dict[Any, Any]:
    """Load a pickled dict of lists, strings and arrays of integers, written by Python 2 or 3 with any protocol.

    Args:
        content: The pickle.
        where: Name of the file, for error messages.

    Returns:
        The entries of the dict by name; strings of Python 2 are bytes.

    Raises:
        UserError: If the pickle names any other class or function, contains no dict, is too large, truncated or
            damaged.
    """
    try:
        if len(content) > LARGEST_BYTES:
            raise _Refused(f"has {len(content):,} bytes, more than {LARGEST_BYTES:,}")
        entries = _Unpickler(content).load()
        if not isinstance(entries, dict):
            raise _Refused(f"contains a {type(entries).__name__.strip('_').lower()} instead of a dict")
        return {
            name.decode() if isinstance(name, bytes) else name: entry.numpy if isinstance(entry, _Array) else entry
            for name, entry in entries.items()
        }
    except _Refused as error:
        raise UserError(f"task.source: {where} is refused, as it {error}") from None
    except Exception as error:  # unpickling damaged bytes can raise any exception
        raise UserError(f"task.source: {where} is not a pickle or is damaged ({type(error).__name__})") from error


class _Refused(Exception):
    """A pickle contains something other than the supported types."""


class _Type:
    """Type of an array in a pickle."""

    def __init__(self, code: str | bytes, *_: Any) -> None:
        text = code.decode() if isinstance(code, bytes) else code
        if not re.fullmatch("[biu][1248]", text):
            raise _Refused(f"contains an array of {text[:20]!r} instead of integers")
        self.numpy = np.dtype(text)

    def __setstate__(self, state: Any) -> None:
        order: Any = state[1].decode() if isinstance(state[1], bytes) else state[1]
        self.numpy = self.numpy.newbyteorder(order)


class _Array:
    """Array in a pickle, created empty and then filled."""

    def __init__(self, *_: Any) -> None:
        self.numpy: NDArray[Any] = np.zeros(0, np.uint8)

    def __setstate__(self, state: Any) -> None:
        _, shape, dtype, fortran, content = state
        self.numpy = np.frombuffer(content, dtype.numpy).reshape(shape, order="F" if fortran else "C")


class _Operations(dict[int, Callable[[Any], None]]):
    """Handlers of the pickle operations by code; raises ``_Refused`` after ``MOST_OPERATIONS`` lookups."""

    left = MOST_OPERATIONS

    def __getitem__(self, code: int) -> Callable[[Any], None]:
        self.left -= 1
        if self.left < 0:
            raise _Refused(f"has more than {MOST_OPERATIONS:,} operations")
        return super().__getitem__(code)


class _Unpickler(pickle._Unpickler):
    """An unpickler that only resolves the names in pickles of numpy's arrays.

    Unlike the C implementation, it allocates no memory for sizes and memo indices that the pickle claims. Tuples become
    lists, which cannot be keys: hashing nested tuples can take unlimited time.
    """

    def __init__(self, content: bytes) -> None:
        super().__init__(io.BytesIO(content), encoding="bytes")
        self.left_to_encode = len(content)
        self.dispatch = _Operations(pickle._Unpickler.dispatch)  # type: ignore[misc]
        for refused in (pickle.EMPTY_SET, pickle.FROZENSET, pickle.EXT1, pickle.EXT2, pickle.EXT4):
            del self.dispatch[refused[0]]
        for size, code in enumerate((pickle.EMPTY_TUPLE, pickle.TUPLE1, pickle.TUPLE2, pickle.TUPLE3)):
            self.dispatch[code[0]] = partial(_load_tuple, size=size)
        self.dispatch[pickle.TUPLE[0]] = self.dispatch[pickle.LIST[0]]
        self.dispatch[pickle.BYTEARRAY8[0]] = self.dispatch[pickle.BINBYTES8[0]]

    def find_class(self, module: str, name: str) -> Any:
        # Functions are new in each call, so that a pickle that sets their attributes has no effect on others.
        replacements = {
            "numpy.dtype": lambda *arguments: _Type(*arguments),
            "numpy.ndarray": None,  # an argument, never called
            "numpy._core.multiarray._reconstruct": lambda *arguments: _Array(),
            "numpy._core.multiarray.scalar": lambda dtype, content: int(np.frombuffer(content, dtype.numpy)[0]),
            "numpy._core.numeric._frombuffer": lambda *arguments: _from_buffer(*arguments),
            "_codecs.encode": self._encode,
            "__builtin__.bytes": lambda: b"",
        }
        full_name = f"{module.replace('numpy.core.', 'numpy._core.', 1)}.{name}"  # the name in numpy 1
        if full_name not in replacements:
            raise _Refused(f"names {module}.{name}")
        return replacements[full_name]

    def _encode(self, text: str, encoding: Any) -> bytes:
        """Return bytes, which protocols 0 to 2 of Python 3 write as text."""
        self.left_to_encode -= len(text)
        if self.left_to_encode < 0 or encoding not in ("latin1", b"latin1"):
            raise _Refused("encodes something other than its bytes")
        return text.encode("latin-1")


def _load_tuple(reader: Any, size: int) -> None:
    first = len(reader.stack) - size
    reader.stack[first:] = [reader.stack[first:]]


def _from_buffer(content: Any, dtype: Any, shape: Any, order: Any) -> _Array:
    array = _Array()
    array.__setstate__((1, shape, dtype, order in ("F", b"F"), content))
    return array
