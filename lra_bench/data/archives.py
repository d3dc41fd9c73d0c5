"""Read files from folders and archives in one pass, without unpacking them to disk."""

from __future__ import annotations

import bz2
import gzip
import io
import lzma
import re
import stat
import tarfile
import zipfile
import zlib
from codecs import BOM_UTF8
from collections.abc import Callable, Generator, Iterator
from contextlib import ExitStack, closing, contextmanager
from functools import partial
from pathlib import Path, PurePosixPath
from typing import IO, BinaryIO, NamedTuple, cast

from lra_bench.errors import UserError

Wanted = Callable[[str], bool]

_OPENERS = ((b"\x1f\x8b", gzip.open), (b"BZh", bz2.open), (b"\xfd7zXZ\x00", lzma.open), (b"", open))
_READ_ERRORS = (
    *(OSError, EOFError, zlib.error, lzma.LZMAError, tarfile.TarError, zipfile.BadZipFile),
    RuntimeError,  # an encrypted zip
)
_CHUNK, _HEAD_BYTES = 1 << 18, 256

LARGEST_RATIO = 250
"""Largest accepted compression ratio; text, tables and images are below it, decompression bombs reach about 1,000."""

SMALL_BYTES = 64 << 20
"""Unpacked bytes that are accepted in addition to ``LARGEST_RATIO`` times the size of the archive."""

LARGEST_MEMBER_BYTES = 1 << 30
"""Largest accepted size of one file."""

LARGEST_TOTAL_BYTES = 64 << 30
"""Largest accepted size of an unpacked archive, several times that of any data set in use."""

LONGEST_LINE = 1 << 24
"""Largest accepted length of a line of a table in bytes."""

LARGEST_PAGE = 1 << 20
"""Size in bytes from which on a file in HTML is data, not an error page."""


class _Member(NamedTuple):
    """A file in an archive. ``open`` may be called until the next file is requested."""

    name: str
    size: int
    open: Callable[[], IO[bytes]]


def read_files(path: Path, wanted: Wanted) -> Iterator[tuple[str, bytes]]:
    """Yield the names and contents of selected files in a folder, a tar (plain, gzip, bzip2, xz) or a zip.

    The files of a folder are sorted by name, with numbers in names compared by value (2 before 10), and links are
    followed. Archives are read in the order in which they were written and completely, so that their checksum is
    verified.

    Args:
        path: The folder or archive.
        wanted: Returns whether to read the file of a given name.

    Yields:
        The name, relative and with slashes, and the content.

    Raises:
        UserError: If ``path`` does not exist, is truncated or damaged. If an archive contains, selected or not, a link,
            a device, or a name that leads out of the archive, a sparse member (tar), or members that are not compressed
            by deflate (zip). If a selected file is encrypted or larger than ``LARGEST_MEMBER_BYTES``, or the archive
            unpacks to more than ``LARGEST_RATIO`` or ``LARGEST_TOTAL_BYTES`` allow; sizes are checked before memory is
            allocated.
    """
    if path.is_dir():
        yield from _read_folder(path, wanted)
        return
    for member in _members(path):
        if wanted(member.name):
            _check_size(member.size, member.name, path)
            with _path_in_errors(path):
                content = member.open().read()
            yield member.name, content


@contextmanager
def open_compressed(path: Path) -> Iterator[BinaryIO]:
    """Open a file as a stream of bytes, decompressing gzip, bzip2, xz or a zip of one file.

    Raises ``UserError``, also when the stream is read, if the file is missing, truncated or damaged, or is a zip of
    several files.
    """
    with ExitStack() as opened:
        with _path_in_errors(path):
            if _is_zip(path):
                archive = opened.enter_context(zipfile.ZipFile(path))
                members = list(_zip_members(archive, path))
                if len(members) != 1:
                    raise UserError(f"task.source: {path} contains {len(members)} files instead of one")
                stream = _Stream(members[0].open(), path)
            else:
                stream = _decompressed(path)
        yield opened.enter_context(io.BufferedReader(stream, _CHUNK))


@contextmanager
def open_inside(path: Path, wanted: Wanted) -> Iterator[BinaryIO | None]:
    """Open the first file of an archive whose name is ``wanted`` as a stream; None if there is none.

    For files that do not fit into memory. Members of a tar after that file are not checked. Raises ``UserError``, also
    when the stream is read, if the archive is missing, truncated or damaged, or if an earlier member is one that
    ``read_files`` refuses.
    """
    with closing(_members(path)) as members:
        stream = next((_Stream(member.open(), path) for member in members if wanted(member.name)), None)
        yield None if stream is None else io.BufferedReader(stream, _CHUNK)


def numbered_lines(stream: BinaryIO, name: str) -> Iterator[tuple[int, bytes]]:
    """Yield number (from 1) and content of each line, without a byte order mark and blank lines at the end.

    Raises ``UserError``, which contains ``name``, if a line is longer than ``LONGEST_LINE`` bytes.
    """
    blank = 0  # number of the first of consecutive blank lines
    for number, line in enumerate(iter(lambda: stream.readline(LONGEST_LINE), b""), start=1):
        if len(line) == LONGEST_LINE:
            raise UserError(f"task.source: line {number} of {name} is longer than {LONGEST_LINE:,} bytes")
        if not line.strip():
            blank = blank or number
            continue
        if blank:
            yield blank, b""
        blank = 0
        yield number, line.removeprefix(BOM_UTF8) if number == 1 else line


def check_is_data(path: Path, head: bytes | None = None) -> None:
    """Raise ``UserError`` if a file is empty, a pointer of Git LFS, or an HTML page such as an error page of a server.

    ``head`` is the beginning of the file, read from ``path`` by default.
    """
    head = _first_bytes(path) if head is None else head
    if not head:
        raise UserError(f"task.source: {path} is empty; download it again")
    if head.startswith(b"version https://git-lfs"):
        raise UserError(f"task.source: {path} is a pointer of Git LFS; replace it by the file (git lfs pull)")
    if re.match(rb"\s*<(!doctype html|html)", head, re.IGNORECASE) and path.stat().st_size < LARGEST_PAGE:
        raise UserError(f"task.source: {path} is an HTML page instead of the file; download it again")


def refuse_broken_link(path: Path) -> None:
    """Raise ``UserError`` if a path is a link to a file that does not exist, such as one that a store has not got."""
    if path.is_symlink() and not path.exists():
        raise UserError(
            f"task.source: {path} is a link to {path.readlink()}, which does not exist; get its content (git annex "
            "get, dvc pull)"
        )


def _read_folder(root: Path, wanted: Wanted) -> Iterator[tuple[str, bytes]]:
    visited = {root.resolve()}

    def walk(folder: Path) -> Iterator[tuple[str, bytes]]:
        with _path_in_errors(folder):
            entries = sorted(folder.iterdir(), key=lambda entry: _natural_order(entry.name))
        for entry in entries:
            name = entry.relative_to(root).as_posix()
            if entry.is_dir():
                if entry.is_symlink():
                    target = entry.resolve()
                    if any(map(target.is_relative_to, visited)):
                        continue  # the target is read where it is
                    visited.add(target)
                yield from walk(entry)
            elif wanted(name):
                with _path_in_errors(entry):
                    if not entry.is_file():
                        refuse_broken_link(entry)
                        raise UserError(f"task.source: {entry} is not a regular file")
                    _check_size(entry.stat().st_size, name, root)
                    content = entry.read_bytes()
                if content:  # some released files are empty
                    check_is_data(entry, content[:_HEAD_BYTES])
                yield name, content

    yield from walk(root)


def _members(path: Path) -> Generator[_Member]:
    """Yield the files of an archive in their order."""
    with _path_in_errors(path):
        if _is_zip(path):
            with zipfile.ZipFile(path) as archive:
                yield from _zip_members(archive, path)
        else:
            yield from _tar_members(path)


def _tar_members(path: Path) -> Iterator[_Member]:
    with _decompressed(path) as stream, ExitStack() as opened:
        try:
            archive = opened.enter_context(tarfile.open(mode="r|", fileobj=stream, tarinfo=_Header))
        except tarfile.ReadError as error:
            raise UserError(f"task.source: {path} is not a folder, tar or zip ({error})") from error
        for member in archive:
            # TarFile would keep every header, which exhausts memory in archives with millions of members.
            archive.members.clear()  # type: ignore[attr-defined]
            name = _checked_name(member.name, path)
            if not (member.isreg() or member.isdir()) or member.issparse():
                kind = "a sparse file" if member.issparse() else "a link or device"
                raise UserError(f"task.source: {path} contains {member.name}, which is {kind}")
            if member.isreg():
                yield _Member(name, member.size, partial(cast(Callable[..., IO[bytes]], archive.extractfile), member))
        while stream.read(_CHUNK):
            pass  # reading to the end of the compressed data verifies its checksum


class _Header(tarfile.TarInfo):
    """A header of a tar; an unreadable one is an error, while tarfile treats it as the end of the archive."""

    @classmethod
    def frombuf(cls, buf: bytes, encoding: str, errors: str) -> _Header:  # type: ignore[override]
        header = super().frombuf(buf, encoding, errors)
        if header.size < 0:
            raise tarfile.HeaderError("negative size")
        return header

    @classmethod
    def fromtarfile(cls, archive: tarfile.TarFile) -> _Header:
        try:
            return super().fromtarfile(archive)
        except tarfile.EOFHeaderError:  # type: ignore[attr-defined]
            raise
        except tarfile.HeaderError as error:
            raise tarfile.ReadError(f"truncated or damaged after {archive.offset:,} bytes") from error


def _zip_members(archive: zipfile.ZipFile, path: Path) -> Iterator[_Member]:
    left = _unpacked_limit(path)
    for member in archive.infolist():
        name = _checked_name(member.filename, path)
        left -= member.file_size
        if left < 0:
            raise _unpacked_size_error(path)
        if stat.S_IFMT(member.external_attr >> 16) not in (0, stat.S_IFREG, stat.S_IFDIR):
            raise UserError(f"task.source: {path} contains {member.filename}, which is a link or device")
        if member.compress_type not in (zipfile.ZIP_STORED, zipfile.ZIP_DEFLATED):
            # Decompressors of other methods return blocks of unlimited size.
            raise UserError(f"task.source: {path} contains {member.filename}, which is not compressed by deflate")
        if not member.is_dir():
            yield _Member(name, member.file_size, partial(archive.open, member))


def _decompressed(path: Path) -> _Stream:
    check_is_data(path)
    head = _first_bytes(path)
    opener = next(opener for magic, opener in _OPENERS if head.startswith(magic))
    return _Stream(cast(IO[bytes], opener(path, "rb")), path)


class _Stream(io.RawIOBase):
    """A decompressed stream of limited size whose read errors name the path; errors of the caller are unchanged."""

    def __init__(self, inner: IO[bytes], path: Path) -> None:
        self._inner, self._path, self._left = inner, path, _unpacked_limit(path)

    def readable(self) -> bool:
        return True

    def readinto(self, buffer: memoryview) -> int:  # type: ignore[override]
        with _path_in_errors(self._path):
            content = self._inner.read(len(buffer))
        self._left -= len(content)
        if self._left < 0:
            raise _unpacked_size_error(self._path)
        buffer[: len(content)] = content
        return len(content)

    def close(self) -> None:
        self._inner.close()
        super().close()


def _unpacked_limit(path: Path) -> int:
    """Return the largest accepted unpacked size of a file in bytes."""
    return min(SMALL_BYTES + LARGEST_RATIO * path.stat().st_size, LARGEST_TOTAL_BYTES)


def _unpacked_size_error(path: Path) -> UserError:
    return UserError(
        f"task.source: {path} unpacks to more than {LARGEST_RATIO} times its size, or more than "
        f"{LARGEST_TOTAL_BYTES >> 30} GiB, which no known data set does"
    )


def _check_size(size: int, name: str, path: Path) -> None:
    if size > LARGEST_MEMBER_BYTES:
        raise UserError(f"task.source: {name} in {path} is larger ({size:,} bytes) than any known file of data")


def _checked_name(name: str, path: Path) -> str:
    """Return a member's normalised relative name. Raises ``UserError`` if it leads out of the archive."""
    parts = re.split(r"[/\\]", name)
    if not name or parts[0] == "" or parts[0].endswith(":") or ".." in parts:
        raise UserError(f"task.source: {path} contains {name!r}, a name that leads out of the archive")
    return PurePosixPath(name).as_posix()


def _natural_order(name: str) -> list[tuple[int, str]]:
    """Return a sort key that compares numbers inside names by value."""
    return [(int(part), "") if part.isdecimal() else (-1, part) for part in re.split(r"(\d+)", name)]


def _first_bytes(path: Path) -> bytes:
    with path.open("rb") as file:
        return file.read(_HEAD_BYTES)


def _is_zip(path: Path) -> bool:
    with _path_in_errors(path):
        return _first_bytes(path).startswith((b"PK\x03\x04", b"PK\x05\x06"))


@contextmanager
def _path_in_errors(path: Path) -> Iterator[None]:
    """Convert errors of the file system and of archive formats to ``UserError`` with the path."""
    try:
        yield
    except FileNotFoundError as error:
        raise UserError(f"task.source: {path} does not exist") from error
    except EOFError as error:
        raise UserError(f"task.source: {path} is truncated") from error
    except _READ_ERRORS as error:
        reason = getattr(error, "strerror", None) or str(error) or type(error).__name__
        raise UserError(f"task.source: {path} cannot be read ({reason})") from error
