"""JSON values: conversion before writing, validation against type hints after reading."""

from __future__ import annotations

import dataclasses
import functools
import inspect
import json
import math
import re
import typing
from collections.abc import Mapping
from typing import Any

from pydantic_core import CoreSchema, SchemaValidator, ValidationError, core_schema, from_json

from lra_bench.contracts import UserError
from lra_bench.options.declaration import LARGEST_FLOAT
from lra_bench.runtime.safe_text import printable

LARGEST = 2**63
"""Upper bound of integers, so that tables can store them in 64 bits."""

DEEPEST = 100
"""Largest depth of nested lists and mappings in a record."""

NOT_STORED = {"stored": False}
"""Metadata of dataclass fields that are not part of the JSON."""

SHOWN_CHARACTERS = 60
"""Largest length of a value in an error message."""

_SURROGATE = re.compile("[\ud800-\udfff]")


def shown(value: Any) -> str:
    """Format a value for an error message, shortened to ``SHOWN_CHARACTERS``."""
    text = repr(value) if not isinstance(value, int) or abs(value) < LARGEST else "a very large integer"
    return text if len(text) <= SHOWN_CHARACTERS else f"{text[:SHOWN_CHARACTERS]}…"


def plain(value: Any) -> Any:
    """Convert a value to JSON types.

    numpy scalars and arrays, tuples, sets, dataclasses and paths are converted, numbers that are not finite become
    None, and text is made ``printable``.
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


def checked_json(content: bytes) -> Any:
    """Parse JSON and replace unprintable characters in its strings.

    Raises ``ValueError`` if it is not strict JSON, and ``UserError`` if it is nested more than ``DEEPEST`` levels
    deep or contains a lone surrogate.
    """
    try:
        # Names are cached: otherwise each of thousands of records has its own copies.
        value = from_json(content, allow_inf_nan=False, cache_strings="keys")
    except ValueError:  # json has clearer messages, and reads more encodings
        try:
            value = json.loads(content.decode(json.detect_encoding(content)), parse_constant=_refuse)
        except RecursionError:
            raise UserError(f"is nested more than {DEEPEST} levels deep") from None
    if isinstance(value, dict | list):
        _clean(value, ())
    return value


def _refuse(name: str) -> None:
    raise ValueError(f"it contains {name}, which is not valid JSON")


def _clean(value: dict[str, Any] | list[Any], path: tuple[str, ...]) -> None:
    """Replace unprintable characters in the keys and strings of ``value``, whose path is ``place``, in place."""
    if len(path) >= DEEPEST:
        raise UserError(f"record: {'.'.join(path[:2])} is nested more than {DEEPEST} levels deep")
    if isinstance(value, dict) and not all(map(str.isprintable, value)):
        where = f"a name in {'.'.join(path)}" if path else "a name"
        renamed = [(_cleaned(name, where), entry) for name, entry in value.items()]
        value.clear()
        value.update(renamed)
    entries: Any = value.items() if isinstance(value, dict) else enumerate(value)
    for name, entry in entries:
        kind = type(entry)
        if kind is dict or kind is list:
            _clean(entry, (*path, str(name)))
        elif kind is str and not entry.isprintable():
            value[name] = _cleaned(entry, ".".join((*path, str(name))))


def _cleaned(text: str, where: str) -> str:
    if _SURROGATE.search(text):
        raise UserError(f"record: {where} contains a lone surrogate ({shown(text)})")
    return printable(text)


def stored_fields(cls: Any) -> list[str]:
    """Return the names of a dataclass's fields, without those with the metadata ``NOT_STORED``."""
    return [entry.name for entry in dataclasses.fields(cls) if entry.metadata != NOT_STORED]


def check(value: Any, hint: Any, where: str = "") -> None:
    """Raise ``UserError`` if a JSON value does not match a type hint.

    Args:
        value: The value.
        hint: A type of JSON values, a typed dict, or a dataclass whose fields are the keys of a mapping. Further keys
            are allowed in both.
        where: Path of the value in the record, for error messages.
    """
    try:
        _validator(hint).validate_python(value, strict=True)
    except ValidationError as error:
        first = error.errors(include_url=False)[0]
        path = ".".join((where, *map(str, first["loc"]))).removeprefix(".")
        if first["type"] == "missing":
            raise UserError(f"record: {path} is missing") from None
        expected = first["msg"].removeprefix("Input ")
        raise UserError(f"record: {path} {expected}, is {shown(first['input'])}") from None


@functools.cache
def _validator(hint: Any) -> SchemaValidator:
    return SchemaValidator(_schema(hint))


_SCALARS: Mapping[Any, CoreSchema] = {
    Any: core_schema.any_schema(),
    bool: core_schema.bool_schema(),
    int: core_schema.int_schema(gt=-LARGEST, lt=LARGEST),
    float: core_schema.float_schema(allow_inf_nan=False, ge=-LARGEST_FLOAT, le=LARGEST_FLOAT),
    str: core_schema.str_schema(),
}


def _schema(hint: Any) -> CoreSchema:
    """Return the pydantic-core schema of a type hint.

    Unlike the schema of ``pydantic.TypeAdapter``, it stops at the first invalid item of a list or mapping, because
    collecting all errors of a damaged record of 300 kB can take gigabytes of memory.
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
        {
            name: core_schema.typed_dict_field(_schema(hints[name]), required=needed)
            for name, needed in required.items()
        },
        metadata={"description": inspect.cleandoc(cls.__doc__ or "").partition("\n\n")[0].replace("\n", " ")},
    )


def json_schema(hint: Any) -> dict[str, Any]:
    """Return the JSON Schema of the values that ``check`` accepts for a type hint."""
    return _as_json_schema(_schema(hint))


_NUMBERS = {"gt": "exclusiveMinimum", "lt": "exclusiveMaximum", "ge": "minimum", "le": "maximum"}
_NAMES = {"bool": "boolean", "int": "integer", "float": "number", "str": "string"}


def _as_json_schema(schema: Any) -> dict[str, Any]:
    kind = schema["type"]
    if kind == "any":
        return {}
    if kind == "nullable":
        inner = _as_json_schema(schema["schema"])
        return {"anyOf": [inner, {"type": "null"}]} if inner else {}
    if kind == "list":
        return {"type": "array", "items": _as_json_schema(schema["items_schema"])}
    if kind == "dict":
        return {"type": "object", "additionalProperties": _as_json_schema(schema["values_schema"])}
    if kind == "typed-dict":
        fields = schema["fields"]
        return {
            **schema["metadata"],
            "type": "object",
            "properties": {name: _as_json_schema(field["schema"]) for name, field in fields.items()},
            "required": [name for name, field in fields.items() if field["required"]],
        }
    return {"type": _NAMES[kind], **{_NUMBERS[name]: bound for name, bound in schema.items() if name in _NUMBERS}}
