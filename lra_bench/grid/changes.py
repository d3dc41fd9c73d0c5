"""The options in which two cells differ, and why a cell is not that of an older record."""

from __future__ import annotations

import shlex
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from lra_bench.cells.cell import Cell
from lra_bench.config import compose as configuration
from lra_bench.config.hashing import covered, digest, earlier_revisions
from lra_bench.config.import_path import importable
from lra_bench.config.origins import Origins, differing, explained, origins
from lra_bench.config.protocols import one_line
from lra_bench.config.schema import CellConfig
from lra_bench.config.serialization import from_dict
from lra_bench.contracts import UserError
from lra_bench.records import store
from lra_bench.records.names import find_path
from lra_bench.records.schema import Record

SHOWN = 3
"""Largest number of options that the reason of a cell names."""


@dataclass(frozen=True)
class Side:
    """One of two cells that are compared; ``command`` contains its overrides. Records have no origins."""

    config: CellConfig
    command: str
    origins: Origins = field(default_factory=dict)

    @classmethod
    def of(cls, named: str, results: Path, reference: Path | None, config_dir: Path | None) -> Side:
        """Return the cell of a record, or of overrides. Raises ``UserError`` if there is none.

        Classes in ``config_dir`` must be importable.
        """
        if "=" not in named:
            record = store.load(find_path(named, results, reference))
            return cls(from_dict(record.config), record.command)
        try:
            words = shlex.split(named)
        except ValueError as error:
            raise UserError(f"{named}: cannot be read as overrides ({error}); correct the quotes") from error
        overrides = [word for word in words if "=" in word and not word.startswith("-")]
        made = configuration.compose(overrides, config_dir)
        return cls(made.config, named, origins(overrides, config_dir))


def differences_of(
    first: str, second: str | None, results: Path, reference: Path | None, config_dir: Path | None
) -> list[dict[str, str]]:
    """Return the ``differences`` of two cells, each given as a record or as overrides (``Side.of``).

    Without ``second``, the cell that the command of the first one names today is the other side.
    """
    with importable(config_dir):
        side = Side.of(first, results, reference, config_dir)
        return differences(side, Side.of(second or side.command, results, reference, config_dir))


def differences(first: Side, second: Side) -> list[dict[str, str]]:
    """Return the options that differ, with both values and the origins of those that were composed today."""
    rows = []
    for option, values in differing(first.config, second.config).items():
        row = {"option": option, "A": one_line(values[0]), "B": one_line(values[1])}
        for side, value, name in zip((first, second), values, ("origin of A", "origin of B"), strict=True):
            if side.origins:
                origin = side.origins.get(option)
                row[name] = "default or revision in code" if origin is None else explained(value, origin)
        rows.append(row)
    return rows


def changed_since(cell: Cell, results: Path, config_dir: Path | None) -> str:
    """Return in which options a cell differs from the most similar older record, empty if there is none.

    The records are those of the same task, model, protocol and seed on any machine. Classes in ``config_dir`` must be
    importable.
    """
    key = cell.key
    pattern = f"{key.task}/{key.model}/*/{key.protocol}-*/seed{key.seed}.json"
    nearest: dict[str, tuple[Any, Any]] | None = None
    older: Record
    for path in store.paths(results, pattern):
        try:
            record = store.load(path)
            if record.key.protocol != key.protocol or record.key.hash == key.hash:
                continue
            changed = differing(from_dict(record.config), cell.config)
        except UserError:  # the record cannot be read, or a class that it names no longer exists
            continue
        if nearest is None or len(changed) < len(nearest):
            nearest, older = changed, record
    if nearest is None:
        return ""
    if not nearest:
        return f"differs from the record {older.key.hash}: {_change_in_code(cell, older)}"
    given = origins(cell.overrides, config_dir)
    named = [
        f"{option} {one_line(old)} → {one_line(new)}, {given[option][-1][0] if option in given else 'code'}"
        for option, (old, new) in [*nearest.items()][:SHOWN]
    ]
    more = f"; and {len(nearest) - SHOWN} more" if len(nearest) > SHOWN else ""
    return f"differs from the record {older.key.hash}: {'; '.join(named)}{more}"


def _change_in_code(cell: Cell, older: Record) -> str:
    """Return in what a cell differs from a record with the same options."""
    if older.data is not None and older.data["fingerprint"] != cell.fingerprint:
        return f"fingerprint of the data {older.data['fingerprint']} → {cell.fingerprint}"
    for description, earlier in earlier_revisions(covered(cell.config)):
        if digest(earlier, cell.fingerprint) == older.key.hash:
            return f"revision of {description}"
    return "a default or several revisions in code"
