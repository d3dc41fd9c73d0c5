"""Atomic writes, bounded reads, and errors of the file system."""

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

from lra_bench.errors import UserError

_writes_cache: ContextVar[bool] = ContextVar("writes_cache", default=True)

ASIDE = re.compile(r"\.(?:[0-9]+\.)?(?:[0-9a-f]{32}|[0-9]+)-(.+)")
"""Names of temporary files, including those left by killed processes; the group is the name of the target file."""


@contextmanager
def cache_read_only() -> Iterator[None]:
    """Write nothing to the cache inside the context; missing data is computed and kept in memory."""
    token = _writes_cache.set(False)
    try:
        yield
    finally:
        _writes_cache.reset(token)


def writes_cache() -> bool:
    """Return whether the cache may be written; false inside ``cache_read_only``."""
    return _writes_cache.get()


@contextmanager
def replacing(target: Path) -> Iterator[Path]:
    """Yield the path of a temporary file that replaces ``target`` by an atomic rename if the context succeeds.

    The folder is created. The content is synced to disk (fsync) before the rename. On an error the temporary file is
    removed and ``target`` is unchanged.
    """
    target.parent.mkdir(parents=True, exist_ok=True)
    # The process id alone is not unique: two machines that share the folder may use the same one.
    temporary = target.with_name(f".{os.getpid()}.{uuid.uuid4().hex}-{target.name}")
    try:
        yield temporary
        sync(temporary)
        _rename(temporary, target)
    finally:
        temporary.unlink(missing_ok=True)
    with suppress(OSError):  # not every file system syncs folders
        sync(target.parent)


def _rename(temporary: Path, target: Path) -> None:
    """Rename ``temporary`` to ``target``.

    An error is ignored if ``target`` is the written file (same inode): a network file system that repeats a request
    reports that the source is missing, although the rename has succeeded.
    """
    written = temporary.stat().st_ino
    try:
        temporary.replace(target)
    except OSError:
        if not target.exists() or target.stat().st_ino != written:
            raise


def expanded(path: str | os.PathLike[str], option: str) -> Path:
    """Return a path with ``~`` replaced by the user's home folder.

    Raises ``UserError`` that names ``option`` if the home folder is unknown, as for a user without an account.
    """
    try:
        return Path(path).expanduser()
    except RuntimeError as error:
        raise home_unknown(option) from error


def home_unknown(option: str) -> UserError:
    """Return the error that a path cannot be determined without the home folder."""
    return UserError(
        f"{option}: the home folder of this user is unknown; set {option} to an absolute path, or set HOME"
    )


def sweep(folder: Path, prefix: str = "") -> None:
    """Remove temporary files of killed processes in ``folder`` whose target names begin with ``prefix``.

    No process may be writing such files.
    """
    for path in folder.glob(".*"):
        found = ASIDE.fullmatch(path.name)
        if found and found[1].startswith(prefix):
            path.unlink(missing_ok=True)


def read_whole(path: Path, most: int, follow_links: bool = True) -> bytes:
    """Read a regular file that other processes may replace at the same time.

    Up to three attempts are made if a network file system reports a stale handle (ESTALE).

    Args:
        path: The file.
        most: Maximum size in bytes.
        follow_links: Whether ``path`` may be a symbolic link.

    Returns:
        The content.

    Raises:
        OSError: If the file cannot be read, is larger than ``most``, grows while it is read, is a link although
            ``follow_links`` is false, or is not a regular file (such as a pipe, which is not waited for).
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
    # O_NONBLOCK: a pipe that replaces the file after the check must not block.
    flags = os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK | (0 if follow_links else os.O_NOFOLLOW)
    handle = os.open(path, flags)
    try:
        size = _check_regular(os.fstat(handle))
        if size > most:
            raise OSError(errno.EFBIG, f"it is too large ({size / 2**20:,.0f} MiB)")
        content = b""
        while len(content) <= size and (piece := os.read(handle, size + 1 - len(content))):
            content += piece
    finally:
        os.close(handle)
    if len(content) > size:
        raise OSError(errno.EFBIG, "it grows while it is read")
    return content


def _check_regular(status: os.stat_result) -> int:
    """Return the size of a regular file in bytes. Raises ``OSError`` if it is not a regular file."""
    if not S_ISREG(status.st_mode):
        raise OSError(errno.EINVAL, "it is a link" if S_ISLNK(status.st_mode) else "it is not a regular file")
    return status.st_size


def why(error: OSError) -> str:
    """Return the reason of a failed write as part of a sentence.

    It is ``is full (...)``, ``cannot be accessed (...)`` without permission, or ``cannot be written (...)``.
    """
    codes = {errno.ENOSPC: "is full", errno.EDQUOT: "is full", errno.EACCES: "cannot be accessed"}
    what = codes.get(error.errno or 0, "cannot be written")
    return f"{what} ({error.strerror or error})"


def system_error(error: BaseException) -> OSError | None:
    """Return the ``OSError`` that caused an error, or None.

    Searches the error itself, its causes and contexts, and messages of Rust libraries (``(os error 28)``).
    """
    if isinstance(error, OSError):
        return error
    for source in (error.__cause__, error.__context__):
        if source is not None and (found := system_error(source)) is not None:
            return found
    code = re.search(r"\(os error (\d+)\)", str(error))  # the format of Rust's standard library
    return OSError(int(code[1]), os.strerror(int(code[1]))) if code else None


def sync(path: Path) -> None:
    """Write a file or folder from the operating system's cache to disk (fsync)."""
    handle = os.open(path, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)
