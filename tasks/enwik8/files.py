"""Read enwik8 from a plain, zipped or gzipped file, complete or a prefix."""

from __future__ import annotations

import hashlib
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from lra_bench.contracts import UserError
from lra_bench.data.archives import open_compressed
from lra_bench.data.digest import sha256_of_file
from lra_bench.data.download import Remote

WHOLE_BYTES = 100_000_000
# Published at https://mattmahoney.net/dc/textdata.html.
WHOLE_MD5 = "a1fa5ffddb56f4953e226637dabbb36a"
# By the number of bytes. The md5 of prefixes, which some recipes use, were computed for this project. The content of an
# incomplete file is compared with those that are not longer.
OFFICIAL_MD5 = {
    None: WHOLE_MD5,
    40_000: "8ae8b56a94f560df1742cc959d6605b7",
    4_000_000: "9b21778ef6fea6251152fc5e4e496f13",
}
OPENING = b'<mediawiki xmlns="http://www.mediawiki.org/xml/export-0.3/"'
REMOTE = Remote(
    "https://mattmahoney.net/dc/enwik8.zip",
    "enwik8.zip",
    # The checksum that several public repositories pin; the md5 of the content is checked as well.
    sha256="547994d9980ebed1288380d652999f38a14fe291a6247c157c3d33d4932534bc",
    size_bytes=36_445_475,
)
MISSING = "enwik8, enwik8.zip or enwik8.gz"

_NAMES = ("enwik8", "enwik8.zip", "enwik8.gz")
_CHUNK = 1 << 20


@dataclass(frozen=True)
class Text:
    """A text: the first bytes of a file.

    Attributes:
        path: Path of the file, which may be compressed.
        size_bytes: Number of bytes of the text.
        md5: md5 of these bytes.
        file_lacks: How the file differs from enwik8; empty if it is complete.
        partial: How the text differs from enwik8; empty if it is complete.
    """

    path: Path
    size_bytes: int
    md5: str
    file_lacks: str
    partial: str

    def read(self) -> bytearray:
        """Return the bytes. Raises ``UserError`` if the file has changed since it was examined."""
        text = bytearray()
        for chunk in _chunks(self.path, self.size_bytes):
            text += chunk
        if hashlib.md5(text, usedforsecurity=False).hexdigest() != self.md5:
            raise UserError(f"task.source: the content of {self.path} does not have the md5 {self.md5}; move it away")
        return text


def find_text(path: Path) -> Path | None:
    """Return the file at ``path`` or in the folder ``path``; a file named enwik8_first… only if there is no other."""
    files = [path, *(path / name for name in _NAMES), *sorted(path.glob("enwik8_first*"))]
    return next((file for file in files if file.is_file()), None)


def examine(path: Path, first_bytes: int | None, memory: Path) -> Text:
    """Determine size, md5 and completeness of the text in a file.

    At most 100,000,000 bytes are read: enwik9, for example, begins with enwik8. If the file is the official archive and
    the complete text is requested, only the checksum of the archive is computed.

    Args:
        path: Path of the file.
        first_bytes: Number of bytes to use; None for the complete text.
        memory: Folder in which checksums of files are stored.

    Returns:
        The description of the text.

    Raises:
        UserError: If the file cannot be read or contains fewer than ``first_bytes`` bytes.
    """
    requested = first_bytes or WHOLE_BYTES
    official = path.stat().st_size == REMOTE.size_bytes and sha256_of_file(path, memory) == REMOTE.sha256
    if official and requested == WHOLE_BYTES:
        return Text(path, WHOLE_BYTES, WHOLE_MD5, "", "")
    file_md5 = hashlib.md5(usedforsecurity=False)
    text_md5 = file_md5 if requested == WHOLE_BYTES else file_md5.copy()
    prefixes = {count: hashlib.md5(usedforsecurity=False) for count in OFFICIAL_MD5 if count}
    opening, size = b"", 0
    for chunk in _chunks(path, requested if official else WHOLE_BYTES):
        file_md5.update(chunk)
        if text_md5 is not file_md5:
            text_md5.update(chunk[: max(0, requested - size)])
        for count, digest in prefixes.items():
            digest.update(chunk[: max(0, count - size)])
        opening = (opening + chunk)[: len(OPENING)]
        size += len(chunk)
    if size < (first_bytes or 0):
        raise UserError(f"task.bytes={first_bytes}: {path} contains only {size:,} bytes; lower task.bytes")
    used = min(requested, size)
    if official or file_md5.hexdigest() == WHOLE_MD5:
        return Text(path, used, text_md5.hexdigest(), "", _prefix(used) if used < WHOLE_BYTES else "")
    same = all(digest.hexdigest() == OFFICIAL_MD5[count] for count, digest in prefixes.items() if count <= size)
    if size < WHOLE_BYTES and opening == OPENING[: len(opening)] and same:
        return Text(path, used, text_md5.hexdigest(), _prefix(size), _prefix(used))
    lacks, partial = (f"{count:,} bytes of a file that is not enwik8" for count in (size, used))
    return Text(path, used, text_md5.hexdigest(), lacks, partial)


def _prefix(size_bytes: int) -> str:
    return f"the first {size_bytes:,} of {WHOLE_BYTES:,} bytes"


def _chunks(path: Path, limit: int) -> Iterator[bytes]:
    """Yield the decompressed content of a file in chunks, up to ``limit`` bytes."""
    with open_compressed(path) as stream:
        while limit > 0 and (chunk := stream.read(min(limit, _CHUNK))):
            limit -= len(chunk)
            yield chunk
