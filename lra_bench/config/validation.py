"""Check configurations."""

from __future__ import annotations

import re
from collections.abc import Collection, Iterable, Iterator
from dataclasses import fields, is_dataclass
from functools import cache
from pathlib import Path
from typing import Any

from lra_bench.build import suggest
from lra_bench.contracts import UserError

from .groups import GROUPS, listing, option_files
from .hints import OTHER_NAMES, check_bare_words, suggest_options
from .loading import quoted
from .protocols import FORMER_FOLDERS, PAGE
from .schema import CellConfig
from .task_groups import ALL, group_names

OPEN_GROUPS = ("task", "model", "position")
"""Groups whose options are the constructor arguments of a class, so that their names are not in the schema."""

ESCAPED = r"\${"
"""How OmegaConf writes the characters that begin an interpolation."""

PATHS = ("task.source",)
"""Options whose values are paths, with any characters; they are no lists of values."""


@cache
def _schema_keys() -> frozenset[str]:
    """Return the dotted names of all sections and options of ``CellConfig``."""

    def walk(node: Any, before: str) -> Iterator[str]:
        for entry in fields(node):
            name, value = f"{before}{entry.name}", getattr(node, entry.name)
            yield name
            if is_dataclass(value):
                yield from walk(value, f"{name}.")

    return frozenset(walk(CellConfig(), ""))


def option_names() -> frozenset[str]:
    """Return the names of all groups and of all options that do not belong to a single task, model or position."""
    return _schema_keys() | set(GROUPS)


def check_override(override: str, config_dir: Path | None) -> str:
    """Check an override of the user and return it in the form that Hydra requires.

    Raises ``UserError`` with a suggestion if the option or the option file does not exist.
    """
    check_bare_words([override], config_dir)
    key, _, value = override.partition("=")
    option = key.lstrip("+~")
    if override.startswith("~"):
        raise UserError(f"{override}: options cannot be removed; set {option}=…, or {option}=null if it has no value")
    section, _, inner = option.partition(".")
    if option in FORMER_FOLDERS:
        raise UserError(
            f"{override}: its values are in the section {FORMER_FOLDERS[option]} of the protocol; choose protocol=… or "
            f"set single options, such as train.steps=… ({PAGE})"
        )
    if option in GROUPS:
        known = option_files(option, config_dir)
        for name in value.split(","):
            if name and name not in known:
                suggested = {*known, *(group_names(config_dir) if option == "task" else ())}
                other = OTHER_NAMES.get(name) or re.sub(r"-v\d+$", "", name)
                hint = suggest(name, suggested, listing(option))
                if other in (*known, ALL) and other != name:
                    hint = f"; write {option}={other}"
                raise UserError(f"{option}={name}: there is no such {option}{hint}")
        return override
    if section in OPEN_GROUPS and inner:
        if option in PATHS and value != "null" and not (len(value) > 1 and value[0] == value[-1] and value[0] in "'\""):
            override = f"{key}={quoted(value.replace('${', ESCAPED))}"
        # Hydra rejects options that no file sets, unless they have a prefix such as ++ (add or replace).
        return override if key != option else f"++{override}"
    if section != "backbone" or not inner:
        check_name(option, value)
    return override


def check_name(option: str, value: str, own: Collection[str] = ()) -> None:
    """Raise ``UserError`` with a suggestion if no section has the ``option``.

    Options of the section ``backbone`` are checked when its class is known; ``own`` are the options that only this
    class has.
    """
    if option in _schema_keys() or option.removeprefix("backbone.").partition(".")[0] in own:
        return
    known = option_names() | {f"backbone.{name}" for name in own}
    if suggestion := suggest_options(option, value, known):
        raise UserError(f"{option}: there is no such option; did you mean {suggestion}?")
    raise UserError(f"{option}: there is no such option{_nearest(option, known)}")


def _nearest(name: str, known: Iterable[str]) -> str:
    """Return the suggestion for an unknown option, from the options of its section if there are any."""
    siblings = {key for key in known if key.rpartition(".")[0] == name.rpartition(".")[0]}
    return suggest(name, siblings or set(known))
