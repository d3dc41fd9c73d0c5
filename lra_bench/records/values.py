"""JSON values: made plain before they are written, checked against type hints after they are read."""

from __future__ import annotations

import dataclasses
import functools
import math
import types
import typing
from collections.abc import Mapping
from typing import Any

from lra_bench.contracts import UserError

LARGEST = 2.0**63
"""No count or figure is larger; tables hold them as 64-bit numbers."""

SHOWN_CHARACTERS = 60


def shown(value: Any) -> str:
    """A value in an error message, not at any length."""
    text = repr(value) if not isinstance(value, int) or abs(value) < LARGEST else "a number of very many digits"
    return text if len(text) <= SHOWN_CHARACTERS else f"{text[:SHOWN_CHARACTERS]}…"


def plain(value: Any) -> Any:
    """``value`` as JSON knows it: numpy scalars, arrays, tuples and paths made plain, what is not finite made None."""
    if value is None or isinstance(value, bool | int | str):
        return value
    if isinstance(value, float):
        return float(value) if math.isfinite(value) else None
    if isinstance(value, Mapping):
        return {str(name): plain(entry) for name, entry in value.items()}
    if isinstance(value, list | tuple | set | frozenset):
        return [plain(entry) for entry in (sorted(value) if isinstance(value, set | frozenset) else value)]
    if hasattr(value, "tolist"):
        return plain(value.tolist())
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        return plain(dataclasses.asdict(value))
    return str(value)


def hints(cls: Any) -> dict[str, Any]:
    """The resolved type hints of a dataclass or typed dict."""
    return _hints(cls)


@functools.cache
def _hints(cls: Any) -> dict[str, Any]:
    return typing.get_type_hints(cls)


@functools.cache
def _origin(hint: Any) -> Any:
    return typing.get_origin(hint)


@functools.cache
def _arguments(hint: Any) -> tuple[Any, ...]:
    return typing.get_args(hint)


def check(value: Any, hint: Any, where: str) -> None:
    """Raise ``UserError`` where ``value``, found at ``where``, is not of the type that ``hint`` names."""
    origin = _origin(hint)
    if origin in (typing.Union, types.UnionType):
        if value is not None:
            check(value, next(kind for kind in _arguments(hint) if kind is not type(None)), where)
    elif typing.is_typeddict(hint):
        _check_typed_dict(value, hint, where)
    elif origin in (dict, list):
        if not isinstance(value, origin):
            raise UserError(f"record: {where} should be a {origin.__name__}, is {shown(value)}")
        inner = _arguments(hint)[-1]
        for name, entry in value.items() if origin is dict else enumerate(value):
            check(entry, inner, f"{where}.{name}")
    elif hint is not Any:
        accepted = (int, float) if hint is float else hint
        if not isinstance(value, accepted) or (isinstance(value, bool) and hint is not bool):
            raise UserError(f"record: {where} should be {hint.__name__}, is {shown(value)}")
        if isinstance(value, int | float) and not -LARGEST <= value <= LARGEST:
            raise UserError(f"record: {where} is beyond all that is measured ({shown(value)})")


def _check_typed_dict(value: Any, hint: Any, where: str) -> None:
    if not isinstance(value, dict):
        raise UserError(f"record: {where} should be a mapping, is {shown(value)}")
    for name, inner in hints(hint).items():
        if name in value:
            check(value[name], inner, f"{where}.{name}")
        elif name in hint.__required_keys__:
            raise UserError(f"record: {where}.{name} is missing")
