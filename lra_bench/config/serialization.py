"""Convert configurations to dictionaries, for records, subprocesses and hashes, and back."""

from __future__ import annotations

import re
import types
import typing
from collections.abc import Callable, Mapping
from contextlib import suppress
from copy import deepcopy
from dataclasses import asdict, fields, is_dataclass
from functools import cache
from typing import Any, TypeVar

from lra_bench.contracts import UserError
from lra_bench.options.declaration import shown

from .schema import Backbone, CellConfig, Measure, extended_backbone, measure_options
from .validation import check_lists, check_value, fits, suggested

Options = TypeVar("Options")

REQUIRED = ("seed", "task", "model", "position", "backbone", "train", "measure", "hardware")
CLOSED = ("backbone", "hardware")
"""Sections in which an unknown option is an error, because they determine what is built and where it runs."""


def as_dict(config: CellConfig) -> dict[str, Any]:
    """Return the configuration as dictionaries and lists, in the order of the schema."""
    return asdict(config)


def measured(config: CellConfig) -> dict[str, Any]:
    """Return the configuration as ``as_dict`` without the launcher, whose class has no effect on a measurement."""
    return {name: section for name, section in as_dict(config).items() if name != "launcher"}


def from_dict(raw: Mapping[str, Any]) -> CellConfig:
    """Build a configuration from the output of ``as_dict``, also from that of an older version of lra-bench.

    Missing options get their defaults. Unknown options are ignored, except in the sections of ``CLOSED``. Raises
    ``UserError`` if a section of ``REQUIRED`` is missing, a value has a wrong type or is out of bounds, or a section
    of ``CLOSED`` has an unknown option.
    """
    if missing := [name for name in REQUIRED if name not in raw]:
        raise UserError(f"the configuration has no section {missing[0]}")
    config = options_from(CellConfig, raw, "")
    check_lists(config)
    return config


def options_from(cls: Callable[..., Options], raw: Any, section: str) -> Options:
    """Build one section of a configuration. Raises ``UserError`` as ``from_dict``."""
    check_value(dict[str, Any], raw, section)
    cls = _class_of(cls, raw, section)
    declared = {entry.name: entry for entry in fields(cls)}  # type: ignore[arg-type]
    if section.partition(".")[0] in CLOSED and (unknown := [name for name in raw if name not in declared]):
        raise UserError(f"{section}.{unknown[0]}: there is no such option")
    given = {}
    for name, hint in _hints(cls).items():
        if name not in raw:
            continue
        option, value = f"{section}.{name}".removeprefix("."), raw[name]
        if is_dataclass(hint):
            given[name] = options_from(hint, value, option)  # type: ignore[arg-type]
            continue
        check_value(hint, value, option, declared[name].metadata.get("rule"))
        given[name] = value
    return cls(**given)


def _class_of(cls: Any, raw: Mapping[str, Any], section: str) -> Any:
    """Return the dataclass of a section, with the options of the backbone that it names, or of all measurements."""
    if cls is Backbone:
        check_value(str | None, raw.get("_target_"), f"{section}._target_")
        return extended_backbone(raw.get("_target_"))
    return measure_options() if cls is Measure else cls


@cache
def _hints(cls: Any) -> dict[str, Any]:
    return typing.get_type_hints(cls)


class WrongValue(UserError):
    """A value of a file or an override that cannot have the type of its option.

    Attributes:
        option: The option.
        fault: The end of the message, such as ``must be an integer``.
    """

    def __init__(self, option: str, fault: str, *value: Any) -> None:
        super().__init__(f"{'='.join([option, *map(shown, value)])}: {fault}")
        self.option, self.fault = option, fault


WORDS = {**dict.fromkeys(("true", "yes", "on", "y"), True), **dict.fromkeys(("false", "no", "off", "n"), False)}
NAMES = {bool: ("true or false",) * 2, int: ("an integer", "integers"), float: ("a number", "numbers")}
ACCEPTED = {int: (int, str), float: (int, float, str)}
"""Types of the values that are valid for an option of a type, of texts those that can be read as a number."""


def converted(hint: Any, value: Any, option: str) -> Any:
    """Convert a value to the type of its option; a section becomes a dictionary in the order of the schema.

    Strings are parsed as numbers where a number is required. Raises ``WrongValue`` if the conversion is not possible.
    """
    if is_dataclass(hint):
        if not isinstance(value, Mapping):
            raise WrongValue(option, f"is a group of options; write {option}.OPTION=…", value)
        cls = _class_of(hint, value, option)
        names = {entry.name: f"{option}.{entry.name}".removeprefix(".") for entry in fields(cls)}
        if unknown := [f"{option}.{name}".removeprefix(".") for name in value if name not in names]:
            raise WrongValue(unknown[0], f"there is no such option{suggested(unknown[0], names.values())}")
        return {name: converted(_hints(cls)[name], value[name], path) for name, path in names.items() if name in value}
    kind, arguments = typing.get_origin(hint), typing.get_args(hint)
    if kind is types.UnionType:
        return converted(next((each for each in arguments if fits(value, each)), arguments[0]), value, option)
    if kind is list:
        if isinstance(value, Mapping):
            raise WrongValue(option, f"is a group of options; write {option}.OPTION=…", value)
        if not isinstance(value, list | tuple):
            raise WrongValue(option, f"must be a list; write {option}=[{value}]", value)
        with suppress(ValueError, OverflowError):
            return [_scalar(arguments[0], each) for each in value]
        raise WrongValue(option, f"must be a list of {NAMES.get(arguments[0], ('', 'texts'))[1]}", value)
    if kind is dict and not isinstance(value, Mapping):
        raise WrongValue(option, f"is a group of options; write {option}.OPTION=…", value)
    try:
        return _scalar(hint, value)
    except OverflowError as error:
        raise WrongValue(option, str(error), value) from error
    except ValueError as error:
        more = _integer(option, str(value)) if hint is int else ""
        raise WrongValue(option, f"must be {NAMES.get(hint, ('a text', ''))[0]}{more}", value) from error


def _scalar(hint: Any, value: Any) -> Any:
    """Return a value with a type that has no arguments. Raises ``ValueError`` if it cannot have it."""
    if hint is bool and type(value) in (bool, int):
        return bool(value)
    if hint is bool and str(value).lower() in WORDS:
        return WORDS[str(value).lower()]
    if hint is str and value is not None and not isinstance(value, list | Mapping):
        return str(value)
    if hint not in (bool, str, *ACCEPTED):
        return deepcopy(value)
    if type(value) not in ACCEPTED.get(hint, ()):
        raise ValueError
    return hint(value)


def _integer(option: str, value: str) -> str:
    """Return what to write instead of a number such as ``1e3`` or a range such as ``0-2``; empty for other values."""
    if ends := re.fullmatch(r"(\d{1,9})-(\d{1,9})", value):
        return f"; write {option}=range({ends[1]},{int(ends[2]) + 1}) for several"
    with suppress(ValueError, OverflowError):
        return f"; write {option}={int(float(value))}" if float(value).is_integer() else ""
    return ""
