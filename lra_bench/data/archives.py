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
from collections.abc import Callable, Generator, Iterator
from contextlib import ExitStack, closing, contextmanager
from functools import partial
from pathlib import Path, PurePosixPath
from typing import IO, BinaryIO, cast

from lra_bench.errors import UserError

Wanted = Callable[[str], bool]

_GZIP, _BZIP2, _XZ, _ZIP = b"\x1f\x8b", b"BZh", b"\xfd7zXZ\x00", (b"PK\x03\x04", b"PK\x05\x06")
_READ_ERRORS = (
    OSError,
    EOFError,
    zlib.error,
    lzma.LZMAError,
    tarfile.TarError,
    zipfile.BadZipFile,
    NotImplementedError,
)
_CHUNK = 1 << 20
_ZIP_HEADER_BYTES = 30  # before each member, without its name

LARGEST_RATIO = 250
"""Largest accepted compression ratio; text, tables and images are below it, decompression bombs reach about 1,000."""

SMALL_BYTES = 64 << 20
"""Unpacked bytes that are accepted in addition to ``LARGEST_RATIO`` times the size of the archive."""

LARGEST_MEMBER_BYTES = 1 << 30
"""Largest accepted size of one file."""

LARGEST_TOTAL_BYTES = 64 << 30
"""Largest accepted size of an unpacked archive, several times that of any data set in use."""


def read_files(path: Path, wanted: Wanted) -> Iterator[tuple[str, bytes]]:
    """Yield the names and contents of selected files in a folder, a tar (plain, gzip, bzip2, xz) or a zip.

    The files of a folder are sorted by name, with numbers in names compared by value (2 before 10); links are followed
    unless they lead out of the folder. Archives are read in the order in which they were written and completely, so
    that their checksum is verified.

    Args:
        path: The folder or archive.
        wanted: Returns whether to read the file of a given name.

    Yields:
        The name, relative and with slashes, and the content.

    Raises:
        UserError: If ``path`` does not exist, is truncated or damaged. If an archive contains, selected or not, a link,
            a device, or a name that leads out of the archive, a sparse member (tar), or members that are encrypted,
            overlap or are not compressed by deflate (zip). If a selected file is larger than ``LARGEST_MEMBER_BYTES``
            or the archive unpacks to more than ``LARGEST_RATIO`` or ``LARGEST_TOTAL_BYTES`` allow; both are checked
            before memory is allocated.
    """
    if path.is_dir():
        yield from _read_folder(path, wanted)
        return
    with _path_in_errors(path):
        head = _first_bytes(path)
        if head.startswith(_ZIP):
            yield from _read_zip(path, wanted)
        else:
            yield from _read_tar(path, head, wanted)


@contextmanager
def open_compressed(path: Path) -> Iterator[BinaryIO]:
    """Open a file as a stream of bytes, decompressing gzip, bzip2, xz or a zip of one file.

    Raises ``UserError``, also when the stream is read, if the file is missing, truncated or damaged, or is a zip of
    several files.
    """
    with ExitStack() as opened:
        with _path_in_errors(path):
            head = _first_bytes(path)
            if head.startswith(_ZIP):
                archive = opened.enter_context(zipfile.ZipFile(path))
                members = _zip_files(archive, path)
                if len(members) != 1:
                    raise UserError(f"task.source: {path} contains {len(members)} files instead of one")
                inner = opened.enter_context(archive.open(members[0]))
            else:
                inner = opened.enter_context(_decompressed(path, head))
        yield _buffered(inner, path)


@contextmanager
def open_inside(path: Path, wanted: Wanted) -> Iterator[BinaryIO | None]:
    """Open the first file of a tar (compressed or not) whose name is ``wanted`` as a stream; None if there is none.

    For files that do not fit into memory. Members after that file are not checked. Raises ``UserError``, also when the
    stream is read, if the tar is missing, truncated or damaged, or if an earlier member is a link, a device or has a
    name that leads out of the archive.
    """
    with _path_in_errors(path):
        files = _tar_files(path, _first_bytes(path))
    with closing(files):
        with _path_in_errors(path):
            found = next((opened() for name, opened in files if wanted(name)), None)
        yield None if found is None else _buffered(found, path)


def _buffered(inner: IO[bytes], path: Path) -> BinaryIO:
    return cast(BinaryIO, io.BufferedReader(cast(io.RawIOBase, _StreamWithPathInErrors(inner, path)), _CHUNK))


class _StreamWithPathInErrors(io.RawIOBase):
    """A stream whose read errors become ``UserError`` with the path; errors of the calling code are unchanged."""

    def __init__(self, inner: IO[bytes], path: Path) -> None:
        self._inner, self._path = inner, path

    def readable(self) -> bool:
        return True

    def readinto(self, buffer: bytearray) -> int:  # type: ignore[override]
        with _path_in_errors(self._path):
            content = self._inner.read(len(buffer))
        buffer[: len(content)] = content
        return len(content)


def _read_folder(root: Path, wanted: Wanted) -> Iterator[tuple[str, bytes]]:
    inside = root.resolve()

    def walk(folder: Path) -> Iterator[tuple[str, bytes]]:
        with _path_in_errors(folder):
            entries = sorted(folder.iterdir(), key=lambda entry: _natural_order(entry.name))
        for entry in entries:
            name = entry.relative_to(root).as_posix()
            if entry.is_symlink() and (entry.is_dir() or wanted(name)):
                if not entry.resolve().is_relative_to(inside):
                    raise UserError(f"task.source: {entry} is a link that leads out of {root}")
                if entry.is_dir():
                    continue  # its target is inside the folder and is read there
            if entry.is_dir():
                yield from walk(entry)
            elif wanted(name):
                with _path_in_errors(entry):
                    if not entry.is_file():
                        raise UserError(f"task.source: {entry} is not a regular file")
                    _check_size(entry.stat().st_size, name, root)
                    content = entry.read_bytes()
                yield name, content

    yield from walk(root)


def _read_tar(path: Path, head: bytes, wanted: Wanted) -> Iterator[tuple[str, bytes]]:
    for name, opened in _tar_files(path, head):
        if wanted(name):
            member = opened()
            _check_size(member.seek(0, io.SEEK_END), name, path)
            member.seek(0)
            yield name, member.read()


def _tar_files(path: Path, head: bytes) -> Generator[tuple[str, Callable[[], IO[bytes]]]]:
    """Yield the name of each file in a tar and a function that opens it, valid until the next file is requested."""
    with _decompressed(path, head) as stream:
        try:
            archive = tarfile.TarFile(fileobj=stream)
        except tarfile.ReadError as error:
            raise UserError(f"task.source: {path} is not a folder, tar or zip ({error})") from error
        offset = -1
        while (member := archive.next()) is not None:
            if archive.offset <= offset or member.size < 0:
                raise UserError(f"task.source: {path} is damaged (after {offset:,} bytes)")
            offset = archive.offset
            # TarFile would keep every header, which exhausts memory in archives with millions of members.
            archive.members.clear()  # type: ignore[attr-defined]
            name = _checked_name(member.name, path)
            if member.isdir():
                continue
            if not member.isreg():
                raise UserError(f"task.source: {path} contains {member.name}, which is a link or device")
            if member.issparse():
                raise UserError(f"task.source: {path} contains {member.name}, a sparse file, which can claim any size")
            yield name, partial(_extracted, archive, member)
        # tarfile treats an unreadable header as the end of the archive; the actual end is a block of zeros.
        stream.seek(archive.offset)
        if stream.read(tarfile.BLOCKSIZE) != bytes(tarfile.BLOCKSIZE):
            raise UserError(f"task.source: {path} is truncated or damaged (after {archive.offset:,} bytes)")
        while stream.read(_CHUNK):
            pass  # reading to the end of the compressed data verifies its checksum


def _extracted(archive: tarfile.TarFile, member: tarfile.TarInfo) -> IO[bytes]:
    opened = archive.extractfile(member)
    assert opened is not None
    return opened


def _read_zip(path: Path, wanted: Wanted) -> Iterator[tuple[str, bytes]]:
    with zipfile.ZipFile(path) as archive:
        for member in _zip_files(archive, path):
            name = _checked_name(member.filename, path)
            if wanted(name):
                _check_size(member.file_size, name, path)
                yield name, archive.read(member)


def _zip_files(archive: zipfile.ZipFile, path: Path) -> list[zipfile.ZipInfo]:
    """Return the files of a zip in the order in which they are stored.

    Raises ``UserError`` if a member is a link or device, encrypted, not compressed by deflate, overlaps another one,
    or if all together claim too large a size.
    """
    files, claimed, end = [], 0, 0
    for member in sorted(archive.infolist(), key=lambda member: member.header_offset):
        _checked_name(member.filename, path)
        if stat.S_IFMT(member.external_attr >> 16) not in (0, stat.S_IFREG, stat.S_IFDIR):
            raise UserError(f"task.source: {path} contains {member.filename}, which is a link or device")
        if member.flag_bits & 1:
            raise UserError(f"task.source: {path} is encrypted")
        if member.compress_type not in (zipfile.ZIP_STORED, zipfile.ZIP_DEFLATED):
            # Decompressors of other methods return blocks of unlimited size.
            raise UserError(f"task.source: {path} contains {member.filename}, which is not compressed by deflate")
        if member.header_offset < end:
            raise UserError(f"task.source: {path} contains {member.filename}, which overlaps another file in it")
        end = member.header_offset + _ZIP_HEADER_BYTES + member.compress_size
        claimed += member.file_size
        if claimed > _unpacked_limit(path):
            raise _unpacked_size_error(path)
        if not member.is_dir():
            files.append(member)
    return files


@contextmanager
def _decompressed(path: Path, head: bytes) -> Iterator[IO[bytes]]:
    openers = ((_GZIP, gzip.open), (_BZIP2, bz2.open), (_XZ, lzma.open))
    opener = next((opener for magic, opener in openers if head.startswith(magic)), open)
    with opener(path, "rb") as stream:
        packed = opener is not open
        yield cast(IO[bytes], _Bounded(cast(IO[bytes], stream), path, packed))


def _unpacked_limit(path: Path) -> int:
    """Return the largest accepted unpacked size of an archive in bytes."""
    return min(SMALL_BYTES + LARGEST_RATIO * path.stat().st_size, LARGEST_TOTAL_BYTES)


class _Bounded:
    """A stream with a size limit.

    Reads are limited to the bytes that remain, because a read of the size claimed by a header would allocate that size.
    If the stream is compressed (``packed``), exceeding the limit of ``_unpacked_limit`` raises ``UserError``.
    """

    def __init__(self, inner: IO[bytes], path: Path, packed: bool) -> None:
        self._inner, self._path, self._packed = inner, path, packed
        self._limit = _unpacked_limit(path) if packed else path.stat().st_size

    def read(self, size: int = -1) -> bytes:
        left = max(0, self._limit + 1 - self._inner.tell())
        content = self._inner.read(min(size, left) if size >= 0 else left)
        self._check(self._inner.tell())
        return content

    def seek(self, place: int, whence: int = io.SEEK_SET) -> int:
        # Skipped bytes are decompressed too, so the limit is checked first.
        self._check(place if whence == io.SEEK_SET else self._inner.tell() + place)
        return self._inner.seek(place, whence)

    def tell(self) -> int:
        return self._inner.tell()

    def seekable(self) -> bool:
        return True

    def _check(self, place: int) -> None:
        if self._packed and place > self._limit:
            raise _unpacked_size_error(self._path)


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
        return file.read(8)


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
