"""Reference boards: records that come with the checkout, shown beside the user's own and never taken for them."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from pathlib import Path

from lra_bench.contracts import UserError
from lra_bench.progress import say

from .schema import Record
from .store import RUNS, load_all

NONE = "none"
CHECKOUT = Path(__file__).resolve().parents[2]


def reference_root(option: str | os.PathLike[str] | None = None) -> Path | None:
    """The folder of reference boards: the option, else ``$LRA_BENCH_REFERENCE``, else that of the checkout.

    None if there is none: the package was installed from a wheel, or the option is ``none``. Raises ``UserError`` if
    the folder that the option or the variable names does not exist.
    """
    for name, value in (("--reference", option), ("LRA_BENCH_REFERENCE", os.environ.get("LRA_BENCH_REFERENCE"))):
        if value and str(value) != NONE:
            folder = Path(value).expanduser().absolute()
            if not folder.is_dir():
                raise UserError(f"{name} {value}: no such folder; name one that holds boards, or {NONE}")
            return folder
        if value:
            return None
    folder = CHECKOUT / "results" / "reference"
    return folder if folder.is_dir() and (CHECKOUT / "pyproject.toml").is_file() else None


def boards(folder: Path | None) -> Iterator[tuple[str, Path]]:
    """Name and results folder of each board under ``folder``, by name."""
    for path in sorted(folder.iterdir()) if folder is not None else ():
        if (path / RUNS).is_dir():
            yield path.name, path


def load_reference(folder: Path | None, own: Path | None = None, broken: Callable[[str], None] = say) -> list[Record]:
    """The records of all boards under ``folder``; the results folder ``own`` is no reference to itself."""
    found = []
    for name, root in boards(folder):
        if own is not None and root.resolve() == own.resolve():
            continue
        for record in load_all(root, broken):
            record.reference = name
            found.append(record)
    return found
