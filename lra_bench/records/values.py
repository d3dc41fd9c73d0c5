"""JSON values: made plain before they are written, checked against type hints after they are read."""

from __future__ import annotations

import dataclasses
import functools
import json
import math
import re
import types
import typing
from collections.abc import Callable, Mapping
from typing import Any

from lra_bench.contracts import UserError
from lra_bench.runtime.safe_text import printable

LARGEST = 2.0**63
"""No count or figure is larger; tables hold them as 64-bit numbers."""

DEEPEST = 100
"""The deepest nesting of lists and mappings in a record."""

SCALARS = (bool, int, float, str)
SHOWN_CHARACTERS = 60

_NO_BRACKETS = bytes(set(range(256)) - set(b'[]{}"\\'))
_SURROGATE = re.compile("[\ud800-\udfff]")
# Escapes in JSON of what ``printable`` replaces; the halves of whole pairs match too.
_ESCAPES = re.compile(
    r"\\(?:[bfr]|u(?:00(?:[018][0-9a-fA-F]|7[fF]|9[0-9a-fA-F])|20(?:2[a-eA-E]|6[6-9])|[dD][89a-fA-F][0-9a-fA-F]{2}))"
)


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
    encoding = json.detect_encoding(content)
    text = content.decode(encoding)
    value = json.loads(text, parse_constant=parse_constant)
    if not (encoding.startswith("utf-8") and _is_shallow(content)) and _depth(value) > DEEPEST:
        raise UserError(f"record: {_deep_place(value)} is nested more than {DEEPEST} levels deep")
    # Most records are plain ASCII, and a search of the text is faster than a visit of every string.
    if text.isascii() and "\x7f" not in text and not _ESCAPES.search(text):
        return value
    return _cleaned(value, "")


def _is_shallow(content: bytes) -> bool:
    """Whether the brackets in valid JSON close within ``DEEPEST`` levels; false where that takes a look at its parts.

    A fraction of the time that a visit of every value takes.
    """
    brackets = content.translate(None, _NO_BRACKETS).replace(b'""', b"")
    if b'"' in brackets or b"\\" in brackets:  # some may stand in strings
        return False
    for _ in range(DEEPEST):
        if not brackets:
            break
        brackets = brackets.replace(b"{}", b"").replace(b"[]", b"")
    return not brackets


def _depth(value: Any) -> int:
    """The levels of nesting of ``value``, or ``DEEPEST`` + 1 where there are more."""
    level, depth = [value] if type(value) in (dict, list) else [], 0
    while level and depth <= DEEPEST:
        depth += 1
        level = [
            entry
            for node in level
            for entry in (node.values() if type(node) is dict else node)
            if type(entry) in (dict, list)
        ]
    return depth


def _deep_place(value: Any) -> str:
    """The outermost two names that lead to what is nested too deeply."""
    names: list[str] = []
    for most in (DEEPEST - 1, DEEPEST - 2):
        entries = value.items() if isinstance(value, dict) else enumerate(value)
        name, value = next((name, entry) for name, entry in entries if _depth(entry) > most)
        names.append(str(name))
    return ".".join(names)


def _cleaned(value: Any, where: str) -> Any:
    """``value`` with printable strings and names; ``UserError`` where one holds a lone surrogate."""
    if isinstance(value, str):
        if _SURROGATE.search(value):
            raise UserError(f"record: {where or 'its text'} holds a lone surrogate ({shown(value)})")
        return printable(value)
    if isinstance(value, dict):
        return {
            _cleaned(name, f"a name in {where}" if where else "a name"): _cleaned(entry, f"{where}.{name}".strip("."))
            for name, entry in value.items()
        }
    if isinstance(value, list):
        return [_cleaned(entry, f"{where}.{number}") for number, entry in enumerate(value)]
    return value


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
    # Thousands of records are whole: only of one that is not is it worth the time to say where.
    if not _fits(hint)(value):
        _refuse(value, hint, where)


Test = Callable[[Any], bool]


@functools.cache
def _fits(hint: Any) -> Test:
    """What says whether a value is of the type that ``hint`` names."""
    kinds, origin = _kinds(hint), _origin(hint)
    if kinds is not None:
        return lambda value: type(value) in kinds and _measurable(value)
    if hint is Any:
        return lambda value: True
    if origin in (typing.Union, types.UnionType):
        inner = _fits(_known(hint))
        return lambda value: value is None or inner(value)
    if typing.is_typeddict(hint):
        return _fits_typed_dict(hint)
    entry = _fits(_arguments(hint)[-1])
    if origin is dict:
        return lambda value: isinstance(value, dict) and all(map(entry, value.values()))
    return lambda value: isinstance(value, list) and all(map(entry, value))


@functools.cache
def _kinds(hint: Any) -> frozenset[type] | None:
    """The exact types of JSON's numbers, texts and truths that ``hint`` names; None where it names anything else."""
    if _origin(hint) in (typing.Union, types.UnionType):
        inner = _kinds(_known(hint))
        return inner and inner | {type(None)}
    return frozenset((int, float) if hint is float else (hint,)) if hint in SCALARS else None


def _measurable(value: Any) -> bool:
    return not isinstance(value, int | float) or -LARGEST <= value <= LARGEST


def _fits_typed_dict(hint: Any) -> Test:
    required = frozenset(hint.__required_keys__)
    kinds = {name: _kinds(inner) for name, inner in hints(hint).items()}
    tests = {name: _fits(inner) for name, inner in hints(hint).items()}

    def fits(value: Any) -> bool:
        if not isinstance(value, dict) or not value.keys() >= required:
            return False
        for name, entry in value.items():
            known = kinds.get(name)
            if known is not None:
                if type(entry) not in known or not _measurable(entry):
                    return False
            elif name in tests and not tests[name](entry):
                return False
        return True

    return fits


def _refuse(value: Any, hint: Any, where: str) -> None:
    """Raise the sentence that names the first part of ``value`` that does not fit."""
    origin = _origin(hint)
    if origin in (typing.Union, types.UnionType):
        check(value, _known(hint), where)
    if typing.is_typeddict(hint):
        _refuse_typed_dict(value, hint, where)
    if origin in (dict, list):
        if not isinstance(value, origin):
            raise UserError(f"record: {where} should be a {origin.__name__}, is {shown(value)}")
        for name, entry in value.items() if origin is dict else enumerate(value):
            check(entry, _arguments(hint)[-1], f"{where}.{name}")
    if hint in SCALARS and type(value) in (_kinds(hint) or ()):
        raise UserError(f"record: {where} is beyond all that is measured ({shown(value)})")
    raise UserError(f"record: {where} should be {hint.__name__}, is {shown(value)}")


def _known(hint: Any) -> Any:
    """The type of an optional value where there is one."""
    return next(kind for kind in _arguments(hint) if kind is not type(None))


def _refuse_typed_dict(value: Any, hint: Any, where: str) -> None:
    if not isinstance(value, dict):
        raise UserError(f"record: {where} should be a mapping, is {shown(value)}")
    for name, inner in hints(hint).items():
        if name in value:
            check(value[name], inner, f"{where}.{name}")
        elif name in hint.__required_keys__:
            raise UserError(f"record: {where}.{name} is missing")
