"""File locks for creating a file or folder in one process at a time."""

from __future__ import annotations

from contextlib import AbstractContextManager
from pathlib import Path
from typing import Any

from lra_bench.progress import say


def hold(target: Path, what: str) -> AbstractContextManager[Any]:
    """Acquire the lock file next to ``target`` and return it as a context that releases it.

    The folder is created. If another process holds the lock, a message that begins with ``what`` is printed on stderr,
    and the call waits. Raises ``OSError`` if the folder cannot be written.
    """
    from filelock import FileLock, Timeout

    target.parent.mkdir(parents=True, exist_ok=True)
    lock = FileLock(target.with_name(f".{target.name}.lock"))
    try:
        return lock.acquire(timeout=1)
    except Timeout:
        say(f"{what}: waiting for the lock of another process")
        return lock.acquire()
