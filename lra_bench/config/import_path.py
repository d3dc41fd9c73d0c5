"""Make the code in the folder of ``--config-dir`` importable."""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from lra_bench.contracts import UserError


@dataclass(frozen=True, eq=False)
class Entered:
    """A context in which the modules of ``folder`` are importable."""

    folder: Path


entered: list[Entered] = []
"""The contexts that are entered now; their folders also contain measurements (``measurements.measurements``)."""


@contextmanager
def importable(folder: Path | None) -> Iterator[None]:
    """Add the folder to the import path inside the context; do nothing if it is None.

    Its modules are forgotten afterwards, so that edited ones are imported again in the next context. Raises
    ``UserError`` if the folder does not exist.
    """
    if folder is None:
        yield
        return
    if not folder.is_dir():
        raise UserError(f"--config-dir {folder}: there is no such folder")
    path = str(folder.resolve())
    sys.path.append(path)  # last, so that its modules do not hide those of libraries
    entered.append(here := Entered(folder))
    try:
        yield
    finally:
        entered.remove(here)
        sys.path.remove(path)
        if path not in sys.path:
            for name, module in list(sys.modules.items()):
                if (getattr(module, "__file__", None) or "").startswith(f"{path}{os.sep}"):
                    del sys.modules[name]
