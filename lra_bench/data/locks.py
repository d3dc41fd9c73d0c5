"""One process at a time makes a file or folder; the others wait, and say so."""

from __future__ import annotations

from contextlib import AbstractContextManager
from pathlib import Path
from typing import Any

from lra_bench.progress import say


def hold(target: Path, what: str) -> AbstractContextManager[Any]:
    """The lock beside ``target``, already held, to be given back by leaving its context; its folder is made.

    ``what`` is what the lock is held for, said on stderr while another process has it. Raises ``OSError`` where the
    folder cannot be written.
    """
    from filelock import FileLock, Timeout

    target.parent.mkdir(parents=True, exist_ok=True)
    lock = FileLock(target.with_name(f".{target.name}.lock"))
    try:
        return lock.acquire(timeout=1)
    except Timeout:
        say(f"{what}: another process is at it; waiting")
        return lock.acquire()
