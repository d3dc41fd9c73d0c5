"""Convert configurations to dictionaries, for records, subprocesses and hashes, and back."""

from __future__ import annotations

import math
import types
import typing
from collections.abc import Callable, Mapping
from dataclasses import asdict, fields, is_dataclass
from functools import cache
from typing import Any, TypeVar

from lra_bench.contracts import UserError
from lra_bench.options import shown

from .schema import Backbone, CellConfig, extended_backbone
from .search import LR

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
    config = options_from(CellConfig, raw, "")
    _check_lists(config)
    _refuse_nan(as_dict(config), "")
    return config


def _check_lists(config: CellConfig) -> None:
    """Raise ``UserError`` if a list has a wrong number of entries."""
    train, search = config.train, config.search
    if len(train.betas) != 2:
        raise UserError(f"train.betas={shown(train.betas)}: must be two numbers, such as [0.9,0.999]")
    if train.beta1_cycle is not None and len(train.beta1_cycle) != 2:
        cycle = shown(train.beta1_cycle)
        raise UserError(f"train.beta1_cycle={cycle}: must be two numbers, such as [0.95,0.85], or null")
    if search.name == LR and len(set(search.rates)) < max(2, len(search.rates)):
        raise UserError(f"search.rates={shown(search.rates)}: must be two or more different rates")
    if search.name == LR and len(set(search.seeds)) < max(1, len(search.seeds)):
        raise UserError(f"search.seeds={shown(search.seeds)}: must be one or more different seeds")


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
    """Build one section of a configuration. Raises ``UserError`` as ``from_dict``."""
    _check_type(dict[str, Any], raw, section)
    if cls is Backbone:
        _check_type(str | None, raw.get("_target_"), f"{section}._target_")
        cls = extended_backbone(raw.get("_target_"))  # type: ignore[assignment]
    declared = {entry.name: entry for entry in fields(cls)}  # type: ignore[arg-type]
    if section.partition(".")[0] in CLOSED and (unknown := [name for name in raw if name not in declared]):
        raise UserError(f"{section}.{unknown[0]}: there is no such option")
    given = {}
    for name, hint in _hints(cls).items():
        if name not in raw:
            continue
        option, value = f"{section}.{name}".removeprefix("."), raw[name]
        given[name] = options_from(hint, value, option) if is_dataclass(hint) else value
        if not is_dataclass(hint):
            _check_type(hint, value, option)
            rule = declared[name].metadata.get("rule")
            if rule and (message := rule.violated(option, value)):
                raise UserError(message)
    return cls(**given)


@cache
def _hints(cls: Any) -> dict[str, Any]:
    return typing.get_type_hints(cls)


def _check_type(hint: Any, value: Any, option: str) -> None:
    """Raise ``UserError`` if ``value`` does not have the type ``hint``."""
    if not _fits(value, hint):
        expected = hint.__name__ if hint in SCALARS else str(hint).replace("typing.", "")
        raise UserError(f"{option}={str(value)[:SHOWN_CHARACTERS]!r}: must be {expected}")


def _fits(value: Any, hint: Any) -> bool:
    origin, arguments = typing.get_origin(hint), typing.get_args(hint)
    if origin is types.UnionType:
        return any(_fits(value, each) for each in arguments)
    if origin is list:
        return isinstance(value, list) and all(_fits(each, arguments[0]) for each in value)
    if origin is dict:
        return isinstance(value, Mapping)
    return hint is Any or type(value) is hint or (hint is float and type(value) is int)
