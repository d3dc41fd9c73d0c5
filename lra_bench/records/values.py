"""JSON values: made plain before they are written, checked against type hints after they are read."""

from __future__ import annotations

import dataclasses
import functools
import json
import math
import re
import typing
from collections.abc import Callable, Mapping
from typing import Any

from pydantic_core import CoreSchema, SchemaValidator, ValidationError, core_schema

from lra_bench.contracts import UserError
from lra_bench.runtime.safe_text import printable

LARGEST = 2**63
"""Counts and figures are smaller, so that tables can hold them as 64-bit numbers."""

DEEPEST = 100
"""The deepest nesting of lists and mappings in a record."""

NOT_STORED = {"stored": False}
"""Metadata of a dataclass's field that its JSON does not hold."""

SHOWN_CHARACTERS = 60

_SURROGATE = re.compile("[\ud800-\udfff]")


def shown(value: Any) -> str:
    """A value in an error message, not at any length."""
    text = repr(value) if not isinstance(value, int) or abs(value) < LARGEST else "a number of very many digits"
    return text if len(text) <= SHOWN_CHARACTERS else f"{text[:SHOWN_CHARACTERS]}…"


def plain(value: Any) -> Any:
    """``value`` as JSON knows it: numpy scalars, arrays, tuples and paths made plain, what is not finite made None.

    Text is made ``printable``.
    """
    if isinstance(value, str):
        return printable(value)
    if value is None or isinstance(value, bool | int):
        return value
    if isinstance(value, float):
        return float(value) if math.isfinite(value) else None
    if isinstance(value, Mapping):
        return {printable(str(name)): plain(entry) for name, entry in value.items()}
    if isinstance(value, list | tuple | set | frozenset):
        return [plain(entry) for entry in (sorted(value) if isinstance(value, set | frozenset) else value)]
    if hasattr(value, "tolist"):
        return plain(value.tolist())
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        return plain(dataclasses.asdict(value))
    return printable(str(value))


def checked_json(content: bytes, parse_constant: Callable[[str], Any]) -> Any:
    """Parse JSON and replace unprintable characters in its strings.

    Raises ``ValueError`` if it is not JSON, and ``UserError`` if it is nested more than ``DEEPEST`` levels deep or
    holds a lone surrogate.
    """
    value = json.loads(content.decode(json.detect_encoding(content)), parse_constant=parse_constant)
    if isinstance(value, dict | list):
        _clean(value, ())
    return value


def _clean(value: dict[str, Any] | list[Any], place: tuple[str, ...]) -> None:
    """Replace unprintable characters in the names and strings of ``value``, which is at ``place``, in place."""
    if len(place) >= DEEPEST:
        raise UserError(f"record: {'.'.join(place[:2])} is nested more than {DEEPEST} levels deep")
    if isinstance(value, dict) and not all(map(str.isprintable, value)):
        where = f"a name in {'.'.join(place)}" if place else "a name"
        named = [(_cleaned(name, where), entry) for name, entry in value.items()]
        value.clear()
        value.update(named)
    entries: Any = value.items() if isinstance(value, dict) else enumerate(value)
    for name, entry in entries:
        kind = type(entry)
        if kind is dict or kind is list:
            _clean(entry, (*place, str(name)))
        elif kind is str and not entry.isprintable():
            value[name] = _cleaned(entry, ".".join((*place, str(name))))


def _cleaned(text: str, where: str) -> str:
    if _SURROGATE.search(text):
        raise UserError(f"record: {where} holds a lone surrogate ({shown(text)})")
    return printable(text)


def stored_fields(cls: Any) -> list[str]:
    """Return the names of a dataclass's fields, those with the metadata ``NOT_STORED`` left out."""
    return [entry.name for entry in dataclasses.fields(cls) if entry.metadata != NOT_STORED]


def check(value: Any, hint: Any, where: str = "") -> None:
    """Raise ``UserError`` if ``value``, found at ``where``, is not of the type that ``hint`` names.

    A hint is a type of JSON values, a typed dict, or a dataclass, whose fields are the names of a mapping. Further
    names are allowed in both.
    """
    try:
        _validator(hint).validate_python(value, strict=True)
    except ValidationError as error:
        first = error.errors(include_url=False)[0]
        place = ".".join((where, *map(str, first["loc"]))).removeprefix(".")
        if first["type"] == "missing":
            raise UserError(f"record: {place} is missing") from None
        expected = first["msg"].removeprefix("Input ")
        raise UserError(f"record: {place} {expected}, is {shown(first['input'])}") from None


@functools.cache
def _validator(hint: Any) -> SchemaValidator:
    return SchemaValidator(_schema(hint))


_SCALARS: Mapping[Any, CoreSchema] = {
    Any: core_schema.any_schema(),
    bool: core_schema.bool_schema(),
    int: core_schema.int_schema(gt=-LARGEST, lt=LARGEST),
    float: core_schema.float_schema(allow_inf_nan=False, gt=-LARGEST, lt=LARGEST),
    str: core_schema.str_schema(),
}


def _schema(hint: Any) -> CoreSchema:
    """Return the pydantic-core schema of a type hint.

    Unlike the schema of ``pydantic.TypeAdapter`` it stops at the first wrong entry of a list or mapping: to collect all
    errors of a damaged record of 300 kB can take gigabytes.
    """
    if hint in _SCALARS:
        return _SCALARS[hint]
    if typing.is_typeddict(hint):
        return _fields_schema(hint, {name: name in hint.__required_keys__ for name in hint.__annotations__})
    if dataclasses.is_dataclass(hint):
        return _fields_schema(hint, dict.fromkeys(stored_fields(hint), True))
    origin, arguments = typing.get_origin(hint), typing.get_args(hint)
    if origin is dict:
        return core_schema.dict_schema(values_schema=_schema(arguments[1]), fail_fast=True)
    if origin is list:
        return core_schema.list_schema(_schema(arguments[0]), fail_fast=True)
    (known,) = set(arguments) - {type(None)}
    return core_schema.nullable_schema(_schema(known))


def _fields_schema(cls: Any, required: Mapping[str, bool]) -> CoreSchema:
    hints = typing.get_type_hints(cls)
    return core_schema.typed_dict_schema(
        {name: core_schema.typed_dict_field(_schema(hints[name]), required=needed) for name, needed in required.items()}
    )
