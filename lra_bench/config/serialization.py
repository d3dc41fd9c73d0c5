"""Convert configurations to dictionaries, for records, subprocesses and hashes, and back."""

from __future__ import annotations

import typing
from collections.abc import Callable, Mapping
from dataclasses import asdict, fields, is_dataclass
from functools import cache
from typing import Any, TypeVar

from lra_bench.contracts import UserError

from .schema import Backbone, CellConfig, Measure, extended_backbone, measure_options
from .validation import check_lists, check_value

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
    if cls is Backbone:
        check_value(str | None, raw.get("_target_"), f"{section}._target_")
        cls = extended_backbone(raw.get("_target_"))  # type: ignore[assignment]
    elif cls is Measure:
        cls = measure_options()
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


@cache
def _hints(cls: Any) -> dict[str, Any]:
    return typing.get_type_hints(cls)
