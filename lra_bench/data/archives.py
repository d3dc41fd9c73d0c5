"""Members of folders and archives, read in one pass and never unpacked to disk."""

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
_FAULTS = (OSError, EOFError, zlib.error, lzma.LZMAError, tarfile.TarError, zipfile.BadZipFile, NotImplementedError)
_CHUNK = 1 << 20
_ZIP_HEADER_BYTES = 30  # in front of each member, without its name

LARGEST_RATIO = 250
"""More than text, tables or pictures are ever packed by; what is made to fill a disk or memory is by a thousand."""

SMALL_BYTES = 64 << 20
LARGEST_MEMBER_BYTES = 1 << 30
LARGEST_TOTAL_BYTES = 64 << 30
"""More than any archive of data unpacks to, several times."""


def read_files(path: Path, wanted: Wanted) -> Iterator[tuple[str, bytes]]:
    """Name and content of the files in a folder, a tar (plain, gzip, bzip2, xz) or a zip whose name is ``wanted``.

    Names are relative, with slashes. A folder is read in the order in which people count (2 before 10), an archive in
    the order in which it was written, to its end, whose checksum is held. Raises ``UserError`` where there is no such
    thing, where it is cut short or damaged, and where an archive holds a link, a device, or a name that leads out of
    it, wanted or not; in a folder links are followed unless they lead out of it. What is larger than any file of data,
    or packed so densely that it can only be meant to fill the memory, is refused before it is held; so are sparse
    members of a tar, and members of a zip that overlap or are packed in another way than by deflate.
    """
    if path.is_dir():
        yield from _read_folder(path, wanted)
        return
    with _named(path):
        head = _head(path)
        if head.startswith(_ZIP):
            yield from _read_zip(path, wanted)
        else:
            yield from _read_tar(path, head, wanted)


@contextmanager
def open_compressed(path: Path) -> Iterator[BinaryIO]:
    """The bytes of a file, or what is in it if it is compressed (gzip, bzip2, xz, a zip of one file), as a stream.

    Raises ``UserError``, from reading too, where the file is missing, cut short, damaged, or a zip of several files.
    """
    with ExitStack() as opened:
        with _named(path):
            head = _head(path)
            if head.startswith(_ZIP):
                archive = opened.enter_context(zipfile.ZipFile(path))
                members = _zip_files(archive, path)
                if len(members) != 1:
                    raise UserError(f"task.source: {path} holds {len(members)} files instead of one")
                inner = opened.enter_context(archive.open(members[0]))
            else:
                inner = opened.enter_context(_decompressed(path, head))
        yield _buffered(inner, path)


@contextmanager
def open_inside(path: Path, wanted: Wanted) -> Iterator[BinaryIO | None]:
    """The first file in a tar (compressed or not) whose name is ``wanted``, as a stream; None where there is none.

    For files too large to be held in memory. What comes after that file is not looked at. Raises ``UserError``, from
    reading too, where the tar is missing, cut short or damaged, and where a link, a device or a name that leads out of
    it comes first.
    """
    with _named(path):
        files = _tar_files(path, _head(path))
    with closing(files):
        with _named(path):
            found = next((opened() for name, opened in files if wanted(name)), None)
        yield None if found is None else _buffered(found, path)


def _buffered(inner: IO[bytes], path: Path) -> BinaryIO:
    return cast(BinaryIO, io.BufferedReader(cast(io.RawIOBase, _Told(inner, path)), _CHUNK))


class _Told(io.RawIOBase):
    """A stream whose faults name the file; those of whoever reads it stay as they are."""

    def __init__(self, inner: IO[bytes], path: Path) -> None:
        self._inner, self._path = inner, path

    def readable(self) -> bool:
        return True

    def readinto(self, buffer: bytearray) -> int:  # type: ignore[override]
        with _named(self._path):
            content = self._inner.read(len(buffer))
        buffer[: len(content)] = content
        return len(content)


def _read_folder(root: Path, wanted: Wanted) -> Iterator[tuple[str, bytes]]:
    inside = root.resolve()

    def walk(folder: Path) -> Iterator[tuple[str, bytes]]:
        with _named(folder):
            entries = sorted(folder.iterdir(), key=lambda entry: _as_counted(entry.name))
        for entry in entries:
            name = entry.relative_to(root).as_posix()
            if entry.is_symlink() and (entry.is_dir() or wanted(name)):
                if not entry.resolve().is_relative_to(inside):
                    raise UserError(f"task.source: {entry} is a link that leads out of {root}")
                if entry.is_dir():
                    continue  # what it leads to is read in its own place
            if entry.is_dir():
                yield from walk(entry)
            elif wanted(name):
                with _named(entry):
                    if not entry.is_file():
                        raise UserError(f"task.source: {entry} is no file")
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
    """Name and opener of each file in a tar; it can be opened until the next one is asked for."""
    with _decompressed(path, head) as stream:
        try:
            archive = tarfile.TarFile(fileobj=stream)
        except tarfile.ReadError as error:
            raise UserError(f"task.source: {path} is no folder, tar or zip ({error})") from error
        offset = -1
        while (member := archive.next()) is not None:
            if archive.offset <= offset or member.size < 0:
                raise UserError(f"task.source: {path} is damaged (after {offset:,} bytes)")
            offset = archive.offset
            # Kept, they would outgrow the memory in archives of millions.
            archive.members.clear()  # type: ignore[attr-defined]
            name = _inside(member.name, path)
            if member.isdir():
                continue
            if not member.isreg():
                raise UserError(f"task.source: {path} holds {member.name}, which is a link or device")
            if member.issparse():
                raise UserError(f"task.source: {path} holds {member.name}, a sparse file, which can claim any size")
            yield name, partial(_extracted, archive, member)
        # tarfile takes a header that it cannot read for the end; the true end is a block of zeros.
        stream.seek(archive.offset)
        if stream.read(tarfile.BLOCKSIZE) != bytes(tarfile.BLOCKSIZE):
            raise UserError(f"task.source: {path} is cut short or damaged (after {archive.offset:,} bytes)")
        while stream.read(_CHUNK):
            pass  # the checksum stands at the end of what is compressed


def _extracted(archive: tarfile.TarFile, member: tarfile.TarInfo) -> IO[bytes]:
    opened = archive.extractfile(member)
    assert opened is not None
    return opened


def _read_zip(path: Path, wanted: Wanted) -> Iterator[tuple[str, bytes]]:
    with zipfile.ZipFile(path) as archive:
        for member in _zip_files(archive, path):
            name = _inside(member.filename, path)
            if wanted(name):
                _check_size(member.file_size, name, path)
                yield name, archive.read(member)


def _zip_files(archive: zipfile.ZipFile, path: Path) -> list[zipfile.ZipInfo]:
    """The files of a zip as they lie in it, once nothing else but folders is in it."""
    files, claimed, end = [], 0, 0
    for member in sorted(archive.infolist(), key=lambda member: member.header_offset):
        _inside(member.filename, path)
        if stat.S_IFMT(member.external_attr >> 16) not in (0, stat.S_IFREG, stat.S_IFDIR):
            raise UserError(f"task.source: {path} holds {member.filename}, which is a link or device")
        if member.flag_bits & 1:
            raise UserError(f"task.source: {path} is encrypted")
        if member.compress_type not in (zipfile.ZIP_STORED, zipfile.ZIP_DEFLATED):
            # Others are unpacked in pieces of any size.
            raise UserError(f"task.source: {path} holds {member.filename}, which is not packed by deflate")
        if member.header_offset < end:
            raise UserError(f"task.source: {path} holds {member.filename}, which overlaps another file in it")
        end = member.header_offset + _ZIP_HEADER_BYTES + member.compress_size
        claimed += member.file_size
        if claimed > _most_unpacked(path):
            raise _too_dense(path)
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


def _most_unpacked(path: Path) -> int:
    """The most bytes that an archive of that size may unpack to."""
    return min(SMALL_BYTES + LARGEST_RATIO * path.stat().st_size, LARGEST_TOTAL_BYTES)


class _Bounded:
    """A stream that asks for no more than can be there; one that is ``packed`` ends in a ``UserError`` beyond that.

    A read of a size that a header announces would allocate that size at once.
    """

    def __init__(self, inner: IO[bytes], path: Path, packed: bool) -> None:
        self._inner, self._path, self._packed = inner, path, packed
        self._limit = _most_unpacked(path) if packed else path.stat().st_size

    def read(self, size: int = -1) -> bytes:
        left = max(0, self._limit + 1 - self._inner.tell())
        content = self._inner.read(min(size, left) if size >= 0 else left)
        self._check(self._inner.tell())
        return content

    def seek(self, place: int, whence: int = io.SEEK_SET) -> int:
        # What is skipped is decompressed too, so it is looked at first.
        self._check(place if whence == io.SEEK_SET else self._inner.tell() + place)
        return self._inner.seek(place, whence)

    def tell(self) -> int:
        return self._inner.tell()

    def seekable(self) -> bool:
        return True

    def _check(self, place: int) -> None:
        if self._packed and place > self._limit:
            raise _too_dense(self._path)


def _too_dense(path: Path) -> UserError:
    return UserError(
        f"task.source: {path} unpacks to more than {LARGEST_RATIO} times its size, or more than "
        f"{LARGEST_TOTAL_BYTES >> 30} GiB, as no data does"
    )


def _check_size(size: int, name: str, path: Path) -> None:
    if size > LARGEST_MEMBER_BYTES:
        raise UserError(f"task.source: {name} in {path} is larger ({size:,} bytes) than any file of data")


def _inside(name: str, path: Path) -> str:
    """A member's name, relative and without detours. Raises ``UserError`` where it leads out of the archive."""
    parts = re.split(r"[/\\]", name)
    if not name or parts[0] == "" or parts[0].endswith(":") or ".." in parts:
        raise UserError(f"task.source: {path} holds {name!r}, a name that leads out of the archive")
    return PurePosixPath(name).as_posix()


def _as_counted(name: str) -> list[tuple[int, str]]:
    """A key that sorts numbers inside names by their value."""
    return [(int(part), "") if part.isdecimal() else (-1, part) for part in re.split(r"(\d+)", name)]


def _head(path: Path) -> bytes:
    with path.open("rb") as file:
        return file.read(8)


@contextmanager
def _named(path: Path) -> Iterator[None]:
    """Faults of files and formats, as one sentence that names the file."""
    try:
        yield
    except FileNotFoundError as error:
        raise UserError(f"task.source: {path} is not there") from error
    except EOFError as error:
        raise UserError(f"task.source: {path} is cut short") from error
    except _FAULTS as error:
        fault = getattr(error, "strerror", None) or str(error) or type(error).__name__
        raise UserError(f"task.source: {path} cannot be read ({fault})") from error
