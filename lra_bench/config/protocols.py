"""The protocols: one file each, with the values that it sets for all cells, and for tasks, models and single cells."""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import yaml

from lra_bench.build import suggest
from lra_bench.contracts import UserError

from . import yaml_files
from .groups import option_paths

GROUP = "protocol"
SECTIONS = ("tasks", "models", "cells")
"""Sections of a protocol, whose keys are tasks, models, and pairs of both (``listops/s4``)."""

HEADER = ("version", "next", "recipe", "tuned", "searched")
"""Options at the top level of a protocol file, documented in ``ProtocolOptions``."""

BASE = "base"
"""Key of a protocol or of an entry: the protocol, or entry of the same section, whose values it begins with."""


@dataclass(frozen=True)
class Layer:
    """Values for a part of the options, and the file and section that sets them (``origin``)."""

    origin: str
    values: Mapping[str, Any]


class Protocol:
    """The content of the file ``protocol/<name>.yaml``, and of files of the same name in extensions, which add entries.

    Attributes:
        name: The name of the protocol.
        base: The protocol whose values are merged before those of this one, None if there is none.
        header: The options of ``HEADER`` that the file sets.
    """

    def __init__(self, name: str, config_dir: Path | None, inheriting: tuple[str, ...] = ()) -> None:
        """Read the files. Raises ``UserError`` if one of them has a wrong form."""
        if name in inheriting:
            raise UserError(f"protocol={name}: its base is the protocol itself")
        paths = option_paths(GROUP, name, config_dir)
        if not paths:
            raise UserError(f"protocol={inheriting[-1]}: base: {name}: there is no such protocol")
        self.name = name
        self._files = [(path, _read(path, name)) for path in paths]
        first, *added = self._files
        self._refuse_replacements(added)
        base = first[1].get(BASE)
        self.base = Protocol(base, config_dir, (*inheriting, name)) if base else None
        self.header = {key: first[1][key] for key in HEADER if key in first[1]}

    def common(self) -> list[Layer]:
        """Return the values for all cells."""
        inherited = self.base.common() if self.base else []
        return [*inherited, Layer(f"{GROUP}/{self.name}.yaml: common", self._files[0][1].get("common") or {})]

    def entry(self, section: str, key: str, asking: tuple[str, ...] = ()) -> list[Layer]:
        """Return the values of an entry of a section: those that it inherits first; empty if there is no entry."""
        if key in asking:
            raise UserError(f"protocol={self.name}: {section}.{key}: its base is the entry itself")
        layers = self.base.entry(section, key) if self.base else []
        for entries in self._sections(section):
            if key not in entries:
                continue
            node = entries[key]
            values = {BASE: node} if isinstance(node, str) else dict(node or {})
            if base := values.pop(BASE, None):
                layers = self.entry(section, base, (*asking, key))
                if not layers:
                    hint = suggest(base, set(self.keys(section)))
                    raise UserError(f"protocol={self.name}: {section}.{key}: there is no entry {base}{hint}")
            layers = [*layers, Layer(f"{GROUP}/{self.name}.yaml: {section}.{key}", values)]
        return layers

    def keys(self, section: str) -> list[str]:
        """Return the keys of the entries of a section, without those of ``base``."""
        return [key for entries in self._sections(section) for key in entries]

    def refuses(self, task: str, model: str) -> str:
        """Return why the protocol has no values for a task and model that it requires, empty if it has."""
        file = f"{GROUP}/{self.name}.yaml"
        tasks = self.keys("tasks")
        if self.header.get("recipe") and task not in tasks:
            return (
                f"protocol={self.name}: the section tasks of {file} has no entry {task}; choose task={','.join(tasks)}"
            )
        cells = self.keys("cells")
        if not self.header.get("tuned") or f"{task}/{model}" in cells:
            return ""
        models = ",".join(key.partition("/")[2] for key in cells if key.partition("/")[0] == task)
        return (
            f"protocol={self.name}: trains each system as in its paper, and the section cells of {file} has no entry "
            f"{task}/{model}; add it in a folder of --config-dir, or choose "
            f"{f'model={models}' if models else 'another task'}"
        )

    def _sections(self, section: str) -> Iterator[Mapping[str, Any]]:
        return (node.get(section) or {} for _, node in self._files)

    def _refuse_replacements(self, added: list[tuple[Path, dict[str, Any]]]) -> None:
        """Raise ``UserError`` if a file of an extension contains more than new entries."""
        first = self._files[0][1]
        for path, node in added:
            replaced = [key for key in node if key not in SECTIONS]
            for section in SECTIONS:
                replaced += [f"{section}.{key}" for key in node.get(section) or {} if key in (first.get(section) or {})]
            if replaced:
                raise UserError(
                    f"protocol={self.name}: {path} replaces {replaced[0]} of the protocol; remove it, or write a "
                    f"protocol of another name with `{BASE}: {self.name}`"
                )


def _read(path: Path, name: str) -> dict[str, Any]:
    """Read a file. Raises ``UserError`` if it is not a mapping with the keys of a protocol."""
    node = yaml_files.read(path, f"protocol={name}")[0] or {}
    allowed = (*HEADER, BASE, "common", *SECTIONS)
    wrong = [str(key) for key in node if key not in allowed] if isinstance(node, Mapping) else [""]
    wrong += [key for key in ("common", *SECTIONS) if not wrong and not isinstance(node.get(key) or {}, Mapping)]
    if wrong:
        raise UserError(
            f"protocol={name}: {path}: {wrong[0] or 'the file'} has a wrong form; a protocol has "
            f"{', '.join(HEADER)} and the sections common, {', '.join(SECTIONS)} (docs/protocols.md)"
        )
    for section in SECTIONS:
        for key, entry in (node.get(section) or {}).items():
            if not isinstance(entry, str | Mapping | None):
                raise UserError(f"protocol={name}: {path}: {section}.{key} must be a mapping or the name of an entry")
    return dict(node)


def combined(layers: Iterable[Layer]) -> dict[str, Any]:
    """Return the values of layers, of which later ones override earlier ones."""
    values: dict[str, Any] = {}
    for layer in layers:
        values = merged(values, layer.values)
    return values


def merged(base: Mapping[str, Any], changes: Mapping[str, Any]) -> dict[str, Any]:
    """Return ``base`` with the values of ``changes``; mappings are merged, all other values replaced."""
    values = dict(base)
    for key, value in changes.items():
        before = values.get(key)
        is_section = isinstance(value, Mapping) and isinstance(before, Mapping)
        values[key] = merged(before, value) if is_section else value  # type: ignore[arg-type]
    return values


def leaves(node: Mapping[str, Any], before: str = "") -> Iterator[tuple[str, Any]]:
    """Yield the dotted name and the value of each option of nested mappings; empty mappings have no options."""
    for key, value in node.items():
        if isinstance(value, Mapping):
            yield from leaves(value, f"{before}{key}.")
        else:
            yield f"{before}{key}", value


def one_line(value: Any) -> str:
    """Return a value as YAML on one line."""
    return yaml.safe_dump([value], default_flow_style=True, width=math.inf, allow_unicode=True).strip()[1:-1]
