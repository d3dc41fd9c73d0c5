"""Find records by the names used on the command line: cell, path, folder, hash prefix, model, or ``last``."""

from __future__ import annotations

import re
from collections.abc import Iterable
from pathlib import Path

from lra_bench.contracts import UserError
from lra_bench.runtime.files import expanded

from .packed import RECORDS, folder_of, packed
from .reference import boards
from .store import RUNS

LAST = "last"
SHOWN = 10
"""Largest number of records that an error message lists."""
CELL_PARTS = 5
"""Number of parts of a cell's name: task, model, hardware, protocol with hash, seed."""

_HASH = re.compile(r"(?:(?P<protocol>[\w.+-]+)-)?#?(?P<hash>[0-9a-f]{4,8})(?:/seed(?P<seed>\d+))?(?:\.json)?")


def find_paths(text: str, root: Path, reference: Path | None = None) -> list[Path]:
    """Return the paths of the records that ``text`` names.

    Args:
        text: The path of a JSON file, a packed record or a folder; a cell or the beginning of one as commands print it
            (``listops/performer/cpu-epyc-2t/quick-0a1b2c3d/seed0``); the first four or more digits of a hash
            (``0a1b``, ``quick-0a1b/seed0``); the name of a model; or ``last`` for the record written last.
        root: The results folder.
        reference: Folder of reference boards, which are searched if ``root`` has no matching record.

    Returns:
        The paths; empty if there is no such record.
    """
    try:
        given = expanded(text, "RECORD")
        if given.is_file() and given.name != RECORDS:
            return [given.absolute()]
        is_folder = given.is_dir() and (given.is_absolute() or "/" in text or text == ".")
    except (OSError, ValueError):  # not a valid path: too long, or contains a null byte
        return []
    if text == LAST:
        return sorted(_files(root / RUNS), key=lambda path: path.stat().st_mtime)[-1:]
    if board := folder_of(given.absolute() / "any"):
        return [path for path in packed(board) if path.is_relative_to(given.absolute())]
    if is_folder:
        return [*packed(given.absolute()), *_files(given.absolute())]
    for folder in (root, *(board for _, board in boards(reference))):
        if found := _in_results(text, folder):
            return found
    return []


def find_path(text: str, root: Path, reference: Path | None = None) -> Path:
    """Return the path of the only record that ``text`` names, see ``find_paths``.

    Raises ``UserError`` if there is no such record or more than one.
    """
    found = find_paths(text, root, reference)
    if not found:
        message = f"--results {root}: contains no record yet" if text == LAST else f"{text}: no such record"
        raise UserError(f"{message}; lra-bench results list shows all records")
    if len(found) > 1:
        names = [_cell_name(path) for path in found[:SHOWN]]
        more = f" and {len(found) - SHOWN:,} more" if len(found) > SHOWN else ""
        raise UserError(f"{text}: matches {len(found):,} records; choose one of {', '.join(names)}{more}")
    return found[0]


def _cell_name(path: Path) -> str:
    """Return the cell of a record in a results folder, otherwise the path."""
    parts = path.with_suffix("").parts
    return "/".join(parts[-CELL_PARTS:]) if parts[-CELL_PARTS - 1 : -CELL_PARTS] in ((RUNS,), (RECORDS,)) else str(path)


def _in_results(text: str, root: Path) -> list[Path]:
    """Return the records of one results folder that match a cell or the first parts of one, a model or a hash."""
    cells = {path.with_suffix("").parts[-CELL_PARTS:]: path for path in (*packed(root), *_files(root / RUNS))}
    name = text.removeprefix(f"{RUNS}/").strip("/").removesuffix(".json")
    first = tuple(name.split("/"))
    if found := [path for cell, path in cells.items() if cell[: len(first)] == first]:
        return found
    if found := [path for cell, path in cells.items() if cell[1] == name]:
        return found
    if not (parts := _HASH.fullmatch(name)):
        return []
    seeds = None if parts["seed"] is None else f"seed{parts['seed']}"
    return [
        path
        for (*_, folder, seed), path in cells.items()
        for protocol, _, digits in [folder.rpartition("-")]
        if digits.startswith(parts["hash"]) and parts["protocol"] in (None, protocol) and seeds in (None, seed)
    ]


def _files(folder: Path) -> Iterable[Path]:
    if not folder.is_dir():
        return []
    return sorted(path for path in folder.rglob("seed*.json") if re.fullmatch(r"seed\d+\.json", path.name))
