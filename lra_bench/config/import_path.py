"""The user's own code, found by imports while it is needed."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from lra_bench.contracts import UserError


@contextmanager
def importable(folder: Path | None) -> Iterator[None]:
    """The user's folder on the import path while cells are composed."""
    if folder is None:
        yield
        return
    if not folder.is_dir():
        raise UserError(f"--config-dir {folder}: there is no such folder")
    sys.path.insert(0, str(folder.resolve()))
    try:
        yield
    finally:
        sys.path.remove(str(folder.resolve()))
