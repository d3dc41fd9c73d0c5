"""List and remove checkpoint folders of cells in the cache."""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from .locks import lock_path, try_lock

BEST = "best.safetensors"


@dataclass(frozen=True)
class CheckpointFolder:
    """A cell's checkpoint folder, with the sizes of its files in bytes.

    ``best_bytes`` is the size of the best weights. ``other_bytes`` is the size of all other files: checkpoints for
    resuming, those of a pretraining, and temporary files that a killed process left.
    """

    folder: Path
    best_bytes: int
    other_bytes: int

    @property
    def unfinished(self) -> bool:
        """Return whether the folder contains other files than the best weights."""
        return self.other_bytes > 0


def checkpoints(root: Path) -> list[CheckpointFolder]:
    """Return the checkpoint folders under the cache ``root``, sorted by path."""
    found = []
    for folder in sorted((root / "checkpoints").glob("*/*/*/*/seed*")):
        if folder.is_dir():
            best = sum(_bytes(path) for path in folder.glob(BEST))
            found.append(CheckpointFolder(folder, best, sum(map(_bytes, _files(folder))) - best))
    return found


def totals(found: list[CheckpointFolder]) -> Iterator[tuple[str, int]]:
    """Yield a description and the size in bytes of all best weights, then of all checkpoints of unfinished cells."""
    yield f"best weights of {sum(each.best_bytes > 0 for each in found):,} cells", sum(k.best_bytes for k in found)
    unfinished = [each for each in found if each.unfinished]
    yield f"checkpoints of {len(unfinished):,} unfinished cells", sum(each.other_bytes for each in unfinished)


def remove(each: CheckpointFolder, keep_best: bool) -> bool:
    """Remove a checkpoint folder, or everything in it except the best weights.

    Returns False, and removes nothing, if a process is measuring the cell.
    """
    lock = try_lock(lock_path(each.folder), "LRA_BENCH_CACHE")
    if not lock.is_locked:
        return False
    try:
        for path in _files(each.folder) if keep_best else ():
            if path != each.folder / BEST:
                path.unlink(missing_ok=True)
        if not keep_best:
            shutil.rmtree(each.folder, ignore_errors=True)
    finally:
        lock.release()
    return True


def folder_bytes(folder: Path) -> int:
    """Return the total size in bytes of all files under a folder."""
    return sum(map(_bytes, _files(folder)))


def _files(folder: Path) -> list[Path]:
    return [path for path in folder.rglob("*") if path.is_file()]


def _bytes(path: Path) -> int:
    try:
        return path.stat().st_size
    except FileNotFoundError:  # another process has renamed or removed the file since it was listed
        return 0
