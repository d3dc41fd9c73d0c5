"""Files that appear whole or not at all."""

from __future__ import annotations

import errno
import os
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path


@contextmanager
def replacing(target: Path) -> Iterator[Path]:
    """A path to write in place of ``target``, which appears whole when the context ends, or not at all.

    Its folder is made. What was written is on the disk, not only in its cache, before the name changes.
    """
    target.parent.mkdir(parents=True, exist_ok=True)
    aside = target.with_name(f"{_unfinished(os.getpid())}{target.name}")
    try:
        yield aside
        sync(aside)
        aside.replace(target)
    finally:
        aside.unlink(missing_ok=True)
    with suppress(OSError):  # not every file system syncs folders
        sync(target.parent)


def remove_unfinished(folder: Path, process: int) -> None:
    """Remove what a process of this machine, by its number, had begun to write in ``folder`` when it was killed."""
    for path in folder.glob(f"{_unfinished(process)}*"):
        path.unlink(missing_ok=True)


def _unfinished(process: int) -> str:
    """How the names of files begin that a process is writing."""
    return f".{process}-"


def why(error: OSError) -> str:
    """What the file system objects to, as the middle of a sentence."""
    what = "is full" if error.errno in (errno.ENOSPC, errno.EDQUOT) else "cannot be written"
    return f"{what} ({error.strerror or error})"


def sync(path: Path) -> None:
    """Wait until a file or folder is on the disk, not only in its cache."""
    handle = os.open(path, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)
