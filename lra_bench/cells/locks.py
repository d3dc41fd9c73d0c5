"""Per-cell file locks: at most one process measures a cell at a time, also across machines with shared folders."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

from lra_bench.contracts import Unwritable
from lra_bench.progress import say
from lra_bench.records.key import CellKey
from lra_bench.runtime.files import why

if TYPE_CHECKING:
    from filelock import BaseFileLock


def checkpoint_folder(key: CellKey) -> Path:
    """Return the checkpoint folder of a cell: a path under the cache that is derived from its key."""
    from lra_bench.data.cache import Cache

    return Cache().root / "checkpoints" / key.folder() / f"seed{key.seed}"


def lock_path(folder: Path) -> Path:
    """Return the path of the lock file of a checkpoint folder."""
    return folder.with_suffix(".lock")


@contextmanager
def cell_lock(key: CellKey, results: Path | None = None) -> Iterator[None]:
    """Lock the cell's checkpoints, and its record in ``results`` if given, until the context exits.

    Waits while another process holds a lock. The operating system releases the locks when the process exits.
    Raises ``UserError`` if a folder cannot be written.
    """
    with ExitStack() as stack:
        for path, option in _locks(key, results):
            lock = try_lock(path, option)
            if not lock.is_locked:
                say(f"{key} is being measured by another process; waiting for it to finish.")
                lock.acquire(poll_interval=0.5)
            stack.callback(lock.release)
        yield


def held_elsewhere(key: CellKey, results: Path) -> bool:
    """Return whether another process is measuring the cell."""
    with ExitStack() as stack:
        for path, option in _locks(key, results):
            lock = try_lock(path, option)
            stack.callback(lock.release)
            if not lock.is_locked:
                return True
    return False


def reserve(key: CellKey, results: Path) -> BaseFileLock | None:
    """Acquire and return the lock that permits starting the cell, or None if another process holds it or measures it.

    The caller releases the lock when the cell has ended. It covers the seconds until the process of the cell has
    acquired the locks of the cell itself.
    """
    from lra_bench.records.store import cell_lock_path

    reserved = try_lock(cell_lock_path(key, results).with_suffix(".reserved"), "--results")
    if reserved.is_locked and not held_elsewhere(key, results):
        return reserved
    reserved.release()
    return None


def _locks(key: CellKey, results: Path | None) -> Iterator[tuple[Path, str]]:
    """Yield the lock files of a cell, each with the option that sets its folder.

    The order is fixed, so that two processes cannot deadlock.
    """
    from lra_bench.records.store import cell_lock_path

    if results is not None:
        yield cell_lock_path(key, results), "--results"
    yield lock_path(checkpoint_folder(key)), "LRA_BENCH_CACHE"


def try_lock(path: Path, option: str) -> BaseFileLock:
    """Return the lock of a file, acquired if no other process holds it.

    Raises ``Unwritable`` if the folder cannot be written; the error names the given option.
    """
    from filelock import FileLock, Timeout

    lock = FileLock(path)
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        lock.acquire(timeout=0)
    except Timeout:
        pass
    except OSError as error:
        raise Unwritable(f"{option}: {path.parent} {why(error)}; set {option} to another folder") from error
    return lock
