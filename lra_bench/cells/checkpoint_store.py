"""List and remove the checkpoints of cells in the cache."""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from .locks import lock_of, taken_if_free

BEST = "best.safetensors"


@dataclass(frozen=True)
class Kept:
    """A cell's checkpoint folder: bytes of its best weights, and of what continuing needs or a kill left behind."""

    folder: Path
    best_bytes: int
    other_bytes: int

    @property
    def unfinished(self) -> bool:
        """Whether it holds more than the best weights."""
        return self.other_bytes > 0


def checkpoints(root: Path) -> list[Kept]:
    """The checkpoint folders under the cache ``root``, by path."""
    found = []
    for folder in sorted((root / "checkpoints").glob("*/*/*/*/seed*")):
        if folder.is_dir():
            best = sum(_bytes(path) for path in folder.glob(BEST))
            found.append(Kept(folder, best, sum(map(_bytes, _files(folder))) - best))
    return found


def totals(found: list[Kept]) -> Iterator[tuple[str, int]]:
    """What there is, in words, with its bytes."""
    yield f"best weights of {sum(each.best_bytes > 0 for each in found):,} cells", sum(k.best_bytes for k in found)
    unfinished = [each for each in found if each.unfinished]
    yield f"checkpoints of {len(unfinished):,} unfinished cells", sum(each.other_bytes for each in unfinished)


def remove(each: Kept, keep_best: bool) -> bool:
    """Remove a folder, or all but its best weights; False, and nothing done, where a process measures the cell."""
    lock = taken_if_free(lock_of(each.folder), "LRA_BENCH_CACHE")
    if not lock.is_locked:
        return False
    try:
        for path in _files(each.folder) if keep_best else ():
            if path.name != BEST:
                path.unlink(missing_ok=True)
        if not keep_best:
            shutil.rmtree(each.folder, ignore_errors=True)
    finally:
        lock.release()
    return True


def folder_bytes(folder: Path) -> int:
    """The size of all files under a folder."""
    return sum(map(_bytes, _files(folder)))


def _files(folder: Path) -> list[Path]:
    return [path for path in folder.rglob("*") if path.is_file()]


def _bytes(path: Path) -> int:
    try:
        return path.stat().st_size
    except FileNotFoundError:  # its writer has renamed it meanwhile
        return 0
