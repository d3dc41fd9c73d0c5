"""Expand overrides with lists of values to one list of overrides per cell."""

from __future__ import annotations

import itertools
import json
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from lra_bench.build import suggest
from lra_bench.config.groups import GROUPS, listing, option_files
from lra_bench.config.hints import check_bare_words
from lra_bench.config.loading import parse_any
from lra_bench.config.task_groups import ALL, expand_tasks
from lra_bench.config.validation import PATHS
from lra_bench.config.yaml_files import read
from lra_bench.contracts import UserError

TITLE = "title"
"""Name of a part of a grid, which is no option."""


def expand(overrides: Sequence[str], config_dir: Path | None = None) -> list[list[str]]:
    """Expand comma lists, ranges, ``model=ALL``, groups of tasks and ``grid=NAME`` to one list of overrides per cell.

    The file of a grid contains ``parts``. Each part is a separate grid: a mapping of options to values or lists of
    values, and optionally a ``title``. Options under ``all`` apply to every part. Overrides on the command line
    replace those of the file. Raises ``UserError`` if an override or the file of a grid cannot be parsed.
    """
    check_bare_words(overrides, config_dir)
    chosen: dict[str, str] = {}
    for key, _, value in (text.partition("=") for text in overrides):
        if key in GROUPS and value != chosen.setdefault(key, value):
            raise UserError(f"{key}={value}: {key} is given twice; write {key}={chosen[key]},{value} for both")
    named = [text for text in overrides if text.partition("=")[0] == "grid"]
    if not named:
        return _expanded(overrides, config_dir)
    own = [text for text in overrides if text not in named]
    overridden = {text.partition("=")[0].lstrip("+") for text in own}
    cells = []
    for name in (each for text in named for each in text.partition("=")[2].split(",")):
        for _, part in grid_parts(name, config_dir):
            kept = [text for key, text in part.items() if key not in overridden]
            cells += _expanded([*kept, *own], config_dir)
    return cells


def grid_parts(name: str, config_dir: Path | None = None) -> Iterator[tuple[str, dict[str, str]]]:
    """Yield the title of each part of a grid's file, empty if it has none, and its overrides by option.

    Raises ``UserError`` if there is no such grid or its file cannot be read.
    """
    files = option_files("grid", config_dir)
    if name not in files:
        raise UserError(f"grid={name}: there is no such grid{suggest(name, set(files))}")
    node, _ = read(files[name], f"grid={name}")
    common, parts = (node.get("all") or {}, node.get("parts")) if isinstance(node, Mapping) else ({}, None)
    if not isinstance(parts, list) or not all(isinstance(part, Mapping) for part in (common, *parts)):
        raise UserError(f"grid={name}: {files[name]} has no parts; they must be mappings from options to values")
    for part in parts:
        options = {key: value for key, value in {**common, **part}.items() if key != TITLE}
        yield str(part.get(TITLE, "")), {str(key): f"{key}={_as_text(value)}" for key, value in options.items()}


def _as_text(value: Any) -> str:
    """Return a value of a grid's file as command-line text; the values of a list are joined with commas."""
    if isinstance(value, list):
        return ",".join(map(_as_text, value))
    return value if isinstance(value, str) else json.dumps(value)


def _expanded(overrides: Sequence[str], config_dir: Path | None) -> list[list[str]]:
    """Return the Cartesian product of the values of all overrides. Raises ``UserError`` if one cannot be parsed."""
    choices: list[list[str]] = []
    for text in overrides:
        key, _, value = text.partition("=")
        if value == ALL and key in GROUPS and key != "task":  # ``expand_tasks`` leaves out tasks that need a table
            choices.append([f"{key}={name}" for name in option_files(key, config_dir)])
            continue
        if not value and key in GROUPS:
            raise UserError(f"{text}: has no value; {listing(key)} lists the choices")
        if value.startswith("glob(") and key in GROUPS:
            raise UserError(f"{text}: patterns are not supported; write the names ({listing(key)} lists them)")
        if key.lstrip("+") in PATHS:
            choices.append([text])
            continue
        parsed = parse_any(text)
        values = list(parsed.sweep_string_iterator()) if parsed.is_sweep_override() else [value]
        if key == "task":
            values = expand_tasks(values, config_dir)
        choices.append([f"{key}={each}" for each in values] if parsed.is_sweep_override() or key == "task" else [text])
    return [list(cell) for cell in itertools.product(*choices)]
