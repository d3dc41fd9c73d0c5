"""Convert configurations to dictionaries, for records, subprocesses and hashes, and back."""

from __future__ import annotations

import math
import types
import typing
from collections.abc import Callable, Mapping
from dataclasses import asdict, is_dataclass
from functools import cache
from typing import Any, TypeVar

from lra_bench.contracts import UserError

from .bounds import check_bounds
from .schema import CellConfig

Options = TypeVar("Options")

REQUIRED = ("seed", "task", "model", "position", "backbone", "train", "measure", "hardware")
CLOSED = ("backbone", "hardware")
"""Sections in which an unknown option is an error, because they determine what is built and where it runs."""

SCALARS = (bool, int, float, str)
SHOWN_CHARACTERS = 60


def as_dict(config: CellConfig) -> dict[str, Any]:
    """Return the configuration as dictionaries and lists, in the order of the schema."""
    return asdict(config)


def from_dict(raw: Mapping[str, Any]) -> CellConfig:
    """Build a configuration from the output of ``as_dict``, also from that of an older version of lra-bench.

    Missing options get their defaults. Unknown options are ignored, except in the sections of ``CLOSED``. Raises
    ``UserError`` if a section of ``REQUIRED`` is missing, a value has a wrong type or is out of bounds, or a section
    of ``CLOSED`` has an unknown option.
    """
    if missing := [name for name in REQUIRED if name not in raw]:
        raise UserError(f"the configuration has no section {missing[0]}")
    config = CellConfig()
    for name, hint in _hints(CellConfig).items():
        if name in raw:
            is_section = is_dataclass(getattr(config, name))
            setattr(config, name, (options_from if is_section else _checked)(hint, raw[name], name))
    check_bounds(config)
    _refuse_nan(as_dict(config), "")
    return config


def _refuse_nan(value: Any, option: str) -> None:
    """Raise ``UserError`` if a part of a configuration contains NaN."""
    if isinstance(value, Mapping):
        for name, each in value.items():
            _refuse_nan(each, f"{option}.{name}".removeprefix("."))
    elif isinstance(value, list):
        for each in value:
            _refuse_nan(each, option)
    elif isinstance(value, float) and math.isnan(value):
        raise UserError(f"{option}=nan: must be a number")


def options_from(cls: Callable[..., Options], raw: Any, section: str) -> Options:
    """Build one section of a configuration. Raises ``UserError`` as ``from_dict``, but does not check bounds."""
    _checked(dict[str, Any], raw, section)
    hints = _hints(cls)
    if section.partition(".")[0] in CLOSED and (unknown := [name for name in raw if name not in hints]):
        raise UserError(f"{section}.{unknown[0]}: there is no such option")
    return cls(
        **{
            name: (options_from if is_dataclass(hint) else _checked)(hint, raw[name], f"{section}.{name}")
            for name, hint in hints.items()
            if name in raw
        }
    )


@cache
def _hints(cls: Any) -> dict[str, Any]:
    return typing.get_type_hints(cls)


def _checked(hint: Any, value: Any, option: str) -> Any:
    """Return ``value``; raise ``UserError`` if it does not have the type ``hint``."""
    if not _fits(value, hint):
        expected = hint.__name__ if hint in SCALARS else str(hint).replace("typing.", "")
        raise UserError(f"{option}={str(value)[:SHOWN_CHARACTERS]!r}: must be {expected}")
    return value


def _fits(value: Any, hint: Any) -> bool:
    origin, arguments = typing.get_origin(hint), typing.get_args(hint)
    if origin is types.UnionType:
        return any(_fits(value, each) for each in arguments)
    if origin is list:
        return isinstance(value, list) and all(_fits(each, arguments[0]) for each in value)
    if origin is dict:
        return isinstance(value, Mapping)
    return hint is Any or type(value) is hint or (hint is float and type(value) is int)
