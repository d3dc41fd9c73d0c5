"""Files that appear whole or not at all."""

from __future__ import annotations

import errno
import os
import re
import uuid
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from contextvars import ContextVar
from pathlib import Path
from stat import S_ISLNK, S_ISREG

_writes_cache: ContextVar[bool] = ContextVar("writes_cache", default=True)

ASIDE = re.compile(r"\.(?:[0-9]+\.)?(?:[0-9a-f]{32}|[0-9]+)-(.+)")
"""Names of files that are being written, or were when their process ended; the group is the name they were to take."""


@contextmanager
def cache_read_only() -> Iterator[None]:
    """Write nothing to the cache while the context lasts: what it lacks is computed and held in memory."""
    token = _writes_cache.set(False)
    try:
        yield
    finally:
        _writes_cache.reset(token)


def writes_cache() -> bool:
    """Whether the cache may be written now; false inside ``cache_read_only``."""
    return _writes_cache.get()


@contextmanager
def replacing(target: Path) -> Iterator[Path]:
    """A path to write in place of ``target``, which appears whole when the context ends, or not at all.

    Its folder is made. What was written is on the disk, not only in its cache, before the name changes.
    """
    target.parent.mkdir(parents=True, exist_ok=True)
    # Process numbers of two machines that share a folder may be equal.
    aside = target.with_name(f"{_unfinished(os.getpid())}{uuid.uuid4().hex}-{target.name}")
    try:
        yield aside
        sync(aside)
        _rename(aside, target)
    finally:
        aside.unlink(missing_ok=True)
    with suppress(OSError):  # not every file system syncs folders
        sync(target.parent)


def _rename(aside: Path, target: Path) -> None:
    """Rename, also where a network file system says that the file is gone: its answer to a repeated request."""
    written = aside.stat().st_ino
    try:
        aside.replace(target)
    except OSError:
        if not target.exists() or target.stat().st_ino != written:
            raise


def sweep(folder: Path, prefix: str = "") -> None:
    """Remove what writers of files with such names have left behind; no such writer may be at work."""
    for path in folder.glob(".*"):
        found = ASIDE.fullmatch(path.name)
        if found and found[1].startswith(prefix):
            path.unlink(missing_ok=True)


def read_whole(path: Path, most: int, follow_links: bool = True) -> bytes:
    """Read a regular file of at most ``most`` bytes, which other processes may replace meanwhile.

    Reads again where a network file system reports a stale handle. Raises ``OSError`` if the path leads to anything
    else, which is then neither opened nor waited for, or is a link while ``follow_links`` is false.
    """
    for last in (False, False, True):
        try:
            return _read_regular(path, most, follow_links)
        except OSError as error:
            if last or error.errno != errno.ESTALE:
                raise
    raise AssertionError


def _read_regular(path: Path, most: int, follow_links: bool) -> bytes:
    _check_regular(path.stat(follow_symlinks=follow_links))
    # What takes its place between the two is not waited for either.
    flags = os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK | (0 if follow_links else os.O_NOFOLLOW)
    handle = os.open(path, flags)
    try:
        size = _check_regular(os.fstat(handle))
        if size > most:
            raise OSError(errno.EFBIG, f"it is too large, {size / 2**20:,.0f} MiB")
        content = b""
        while len(content) <= size and (piece := os.read(handle, size + 1 - len(content))):
            content += piece
    finally:
        os.close(handle)
    if len(content) > size:
        raise OSError(errno.EFBIG, "it grows while it is read")
    return content


def _check_regular(status: os.stat_result) -> int:
    """The size of a regular file; ``OSError`` if it is anything else."""
    if not S_ISREG(status.st_mode):
        raise OSError(errno.EINVAL, "it is a link" if S_ISLNK(status.st_mode) else "it is no file")
    return status.st_size


def remove_unfinished(folder: Path, process: int) -> None:
    """Remove what a process of this machine, by its number, had begun to write in ``folder`` when it was killed."""
    for path in folder.glob(f"{_unfinished(process)}*"):
        path.unlink(missing_ok=True)


def _unfinished(process: int) -> str:
    """How the names of files begin that a process is writing."""
    return f".{process}."


def why(error: OSError) -> str:
    """What the file system objects to, as the middle of a sentence."""
    what = "is full" if error.errno in (errno.ENOSPC, errno.EDQUOT) else "cannot be written"
    return f"{what} ({error.strerror or error})"


def system_error(error: BaseException) -> OSError | None:
    """The file system's error behind that of a library which hides it, None where there is none."""
    if isinstance(error, OSError):
        return error
    for behind in (error.__cause__, error.__context__):
        if behind is not None and (found := system_error(behind)) is not None:
            return found
    named = re.search(r"\(os error (\d+)\)", str(error))  # as Rust prints them
    return OSError(int(named[1]), os.strerror(int(named[1]))) if named else None


def sync(path: Path) -> None:
    """Wait until a file or folder is on the disk, not only in its cache."""
    handle = os.open(path, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)
