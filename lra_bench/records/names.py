"""Names of records on the command line: the cell as it is printed, a path, a folder, a hash prefix, or ``last``."""

from __future__ import annotations

import re
from collections.abc import Iterable
from pathlib import Path

from lra_bench.contracts import UserError

from .reference import boards
from .store import RUNS

LAST = "last"
SHOWN = 10
CELL_PARTS = 5
"""Task, model, hardware, protocol and hash, seed."""

_HASH = re.compile(r"(?:(?P<protocol>[\w.+-]+)-)?#?(?P<hash>[0-9a-f]{4,8})(?:/seed(?P<seed>\d+))?(?:\.json)?")


def find_paths(text: str, root: Path, reference: Path | None = None) -> list[Path]:
    """The records that ``text`` names: those of the results folder ``root``, else those of the reference boards.

    ``text`` is a path of a JSON file or a folder, a cell or the beginning of one as commands print it
    (``listops/performer/cpu-epyc-2t/quick-0a1b2c3d/seed0``), the first four or more digits of a hash (``0a1b``,
    ``quick-0a1b/seed0``), a model if it has a record, or ``last`` for the record written last. Empty if it names none.
    """
    try:
        return _find(text, root, reference)
    except (OSError, ValueError):  # no path can have this name: too long, or with a null byte
        return []


def _find(text: str, root: Path, reference: Path | None) -> list[Path]:
    given = Path(text).expanduser()
    if given.is_file():
        return [given.absolute()]
    if text == LAST:
        written = sorted(_records(root / RUNS), key=lambda path: path.stat().st_mtime)
        return written[-1:]
    if given.is_dir() and (given.is_absolute() or "/" in text or text == "."):
        return list(_records(given.absolute()))
    for folder in (root, *(board for _, board in boards(reference))):
        if found := _in_results(text, folder):
            return found
    return []


def find_path(text: str, root: Path, reference: Path | None = None) -> Path:
    """The one record that ``text`` names, as ``find_paths`` reads it; ``UserError`` if it names none or several."""
    found = find_paths(text, root, reference)
    if not found:
        told = "holds no record yet" if text == LAST else f"{text}: no such record"
        where = f"--results {root}: {told}" if text == LAST else told
        raise UserError(f"{where}; lra-bench results list names those that are there")
    if len(found) > 1:
        names = [_cell_name(path) for path in found[:SHOWN]]
        more = f" and {len(found) - SHOWN:,} more" if len(found) > SHOWN else ""
        raise UserError(f"{text}: means {len(found):,} records, name one of them: {', '.join(names)}{more}")
    return found[0]


def _cell_name(path: Path) -> str:
    """The cell of a record in its place, else the path."""
    parts = path.with_suffix("").parts
    return "/".join(parts[-CELL_PARTS:]) if parts[-CELL_PARTS - 1 : -CELL_PARTS] == (RUNS,) else str(path)


def _in_results(text: str, root: Path) -> list[Path]:
    """Records of one results folder by a cell's name, a folder within ``runs``, a model or a hash."""
    runs = root / RUNS
    name = text.removeprefix(f"{RUNS}/").strip("/")
    if name and ".." not in Path(name).parts:
        exact = runs / (name if name.endswith(".json") else f"{name}.json")
        if exact.is_file():
            return [exact]
        if (runs / name).is_dir():
            return list(_records(runs / name))
        if "/" not in name and (found := [path for path in _records(runs) if path.relative_to(runs).parts[1] == name]):
            return found
    if not (parts := _HASH.fullmatch(name)):
        return []
    seed = f"seed{parts['seed']}.json" if parts["seed"] else None
    return [
        path
        for path in _records(runs)
        if (cell := path.parent.name.rpartition("-"))[2].startswith(parts["hash"])
        and parts["protocol"] in (None, cell[0])
        and seed in (None, path.name)
    ]


def _records(folder: Path) -> Iterable[Path]:
    return sorted(path for path in folder.rglob("seed*.json") if re.fullmatch(r"seed\d+\.json", path.name))
