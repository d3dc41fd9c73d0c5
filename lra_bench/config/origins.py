"""Where the values of a configuration come from, and which of them differ between two configurations."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from .compose import Loader
from .hashing import covered
from .protocols import leaves, one_line
from .schema import CellConfig

CHOSEN = "chosen by lra-bench"
"""Origin of a value that no file and no override sets, such as the number of threads."""

COLUMN = 44
"""Column of the comments."""

Origins = Mapping[str, Sequence[tuple[str, Any]]]
"""The values that were given to each option, each with its origin; later ones override earlier ones."""


def origins(overrides: Sequence[str], config_dir: Path | None) -> Origins:
    """Return the origins of the values of a cell. Raises ``UserError`` as ``compose``."""
    layers = Loader(config_dir)(overrides).layers
    given: dict[str, list[tuple[str, Any]]] = {}
    for layer in layers:
        for option, value in leaves(layer.values):
            given.setdefault(option, []).append((layer.origin, value))
    return given


def annotated(config: Mapping[str, Any], given: Origins, before: str = "", indent: str = "") -> Iterator[str]:
    """Yield the lines of a configuration in YAML, each value with its origin as a comment."""
    for key, value in config.items():
        name = f"{before}{key}"
        if isinstance(value, Mapping) and value:
            yield f"{indent}{one_line(key)}:"
            yield from annotated(value, given, f"{name}.", f"{indent}  ")
        else:
            line = f"{indent}{one_line(key)}: {one_line(value)}"
            yield f"{line:<{COLUMN}}  # {explained(value, given.get(name, ()))}"


def explained(value: Any, given: Sequence[tuple[str, Any]]) -> str:
    """Return the origin of a value, followed by the values that it overrides: ``task/text.yaml (default 3)``."""
    if not given or (given[-1][1] != value and "${" not in str(given[-1][1])):
        given = [*given, (CHOSEN, value)]
    (*overridden, (origin, _)) = given
    file = f"{origin.partition(': ')[0]}: "
    before = ", ".join(f"{other.removeprefix(file)} {one_line(old)}" for other, old in reversed(overridden))
    return f"{origin} ({before})" if before else origin


def differing(first: CellConfig, second: CellConfig) -> dict[str, tuple[Any, Any]]:
    """Return the options that the hash covers and whose values differ, with both values; None if there is no value.

    They include defaults in code (``model.mixer.rank``), revisions of classes and digests of their code.
    """
    values = [dict(leaves(covered(config))) for config in (first, second)]
    names = dict.fromkeys([*values[0], *values[1]])
    pairs = {name: (values[0].get(name), values[1].get(name)) for name in names}
    return {name: pair for name, pair in pairs.items() if pair[0] != pair[1]}
