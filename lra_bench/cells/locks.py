"""Per-cell file locks: one process at a time measures a cell, on whatever machine."""

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
    """Where a cell keeps its checkpoints: under the cache, by its key."""
    from lra_bench.data.cache import Cache

    return Cache().root / "checkpoints" / key.folder() / f"seed{key.seed}"


def lock_of(folder: Path) -> Path:
    """The file whose lock keeps a checkpoint folder for one process."""
    return folder.with_suffix(".lock")


@contextmanager
def cell_lock(key: CellKey, results: Path | None = None) -> Iterator[None]:
    """Keep other processes from the cell's checkpoints until the context ends, and from its place in ``results``.

    The kernel ends the hold with the process. Raises ``UserError`` where a folder cannot be written.
    """
    with ExitStack() as held:
        for path, folder in _locks(key, results):
            lock = taken_if_free(path, folder)
            if not lock.is_locked:
                say(f"{key} is being measured by another process; waiting for it to end.")
                lock.acquire(poll_interval=0.5)
            held.callback(lock.release)
        yield


def held_elsewhere(key: CellKey, results: Path) -> bool:
    """Whether another process measures the cell just now."""
    with ExitStack() as held:
        for path, folder in _locks(key, results):
            lock = taken_if_free(path, folder)
            held.callback(lock.release)
            if not lock.is_locked:
                return True
    return False


def reserve(key: CellKey, results: Path) -> BaseFileLock | None:
    """The right to start the cell, to be released when it has ended; None where another process has it or measures it.

    The locks of the cell itself are taken by its own process, seconds later.
    """
    from lra_bench.records.store import claim

    reserved = taken_if_free(claim(key, results).with_suffix(".reserved"), "--results")
    if reserved.is_locked and not held_elsewhere(key, results):
        return reserved
    reserved.release()
    return None


def _locks(key: CellKey, results: Path | None) -> Iterator[tuple[Path, str]]:
    """The files whose locks keep a cell, each with the option that names where it lies; always in this order."""
    from lra_bench.records.store import claim

    if results is not None:
        yield claim(key, results), "--results"
    yield lock_of(checkpoint_folder(key)), "LRA_BENCH_CACHE"


def taken_if_free(path: Path, folder: str) -> BaseFileLock:
    """The lock of a file, held if no other process holds it."""
    from filelock import FileLock, Timeout

    lock = FileLock(path)
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        lock.acquire(timeout=0)
    except Timeout:
        pass
    except OSError as error:
        raise Unwritable(f"{folder}: {path.parent} {why(error)}; set {folder} to another folder") from error
    return lock
