"""Reference boards: records that are part of lra-bench, shown next to the user's records and marked as such."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from pathlib import Path

from lra_bench.contracts import UserError
from lra_bench.errors import CHECKOUT
from lra_bench.progress import say
from lra_bench.runtime.files import expanded

from .board import BOARD, changes
from .packed import RECORDS
from .schema import Record
from .store import RUNS, existing_root, load_all

NONE = "none"
INSTALLED = Path(__file__).resolve().parents[1] / "boards"
"""Folder of the boards in an installed wheel, which a checkout does not contain."""


def reference_root(option: str | os.PathLike[str] | None = None) -> Path | None:
    """Return the folder of reference boards: ``option``, ``$LRA_BENCH_REFERENCE``, or that of lra-bench.

    None if the option or the variable is ``none`` or if lra-bench was installed without boards. Raises ``UserError`` if
    the folder named by the option or the variable does not exist.
    """
    for name, value in (("--reference", option), ("LRA_BENCH_REFERENCE", os.environ.get("LRA_BENCH_REFERENCE"))):
        if value and str(value) != NONE:
            folder = expanded(value, name).absolute()
            if not folder.is_dir():
                raise UserError(
                    f"{name} {value}: no such folder; set it to a folder that contains boards, or to {NONE}"
                )
            return folder
        if value:
            return None
    return next(filter(Path.is_dir, (INSTALLED, CHECKOUT / "results" / "reference")), None)


def boards(folder: Path | None) -> Iterator[tuple[str, Path]]:
    """Yield the name and results folder of each board in ``folder``, sorted by name."""
    for path in sorted(folder.iterdir()) if folder is not None else ():
        if any((path / name).exists() for name in (RUNS, RECORDS, BOARD)):
            yield path.name, path


def load_records(
    results: str | os.PathLike[str] | None, reference: str | os.PathLike[str] | None
) -> tuple[Path, list[Record]]:
    """Return the results folder, and its records followed by those of the reference boards."""
    root = existing_root(results)
    return root, [*_load(root, say), *load_reference(reference_root(reference), root)]


def _load(root: Path, broken: Callable[[str], None]) -> list[Record]:
    """Load all records under ``root`` and report board files that do not match their checksums."""
    for change in changes(root):
        broken(f"{change}; numbers may be wrong or missing")
    return load_all(root, broken)


def load_reference(folder: Path | None, own: Path | None = None, broken: Callable[[str], None] = say) -> list[Record]:
    """Load the records of all boards in ``folder``, None for no boards, with the board's name in ``reference``.

    A board in the user's results folder ``own`` is skipped. ``broken`` is called with the error message of each file
    that is not a valid record, and of each that differs from its digest in ``board.json``.
    """
    found = []
    for name, root in boards(folder):
        if own is not None and root.resolve() == own.resolve():
            continue
        for record in _load(root, broken):
            record.reference = name
            found.append(record)
    return found
