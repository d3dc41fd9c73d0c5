"""enwik8 in a file: the bytes as they are, zipped or gzipped, whole or from the front."""

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
# As its author states it: https://mattmahoney.net/dc/textdata.html
WHOLE_MD5 = "a1fa5ffddb56f4953e226637dabbb36a"
# By the number of bytes; those of prefixes were computed here, for the recipes that read no more.
OFFICIAL_MD5 = {
    None: WHOLE_MD5,
    40_000: "8ae8b56a94f560df1742cc959d6605b7",
    4_000_000: "9b21778ef6fea6251152fc5e4e496f13",
}
OPENING = b'<mediawiki xmlns="http://www.mediawiki.org/xml/export-0.3/"'
REMOTE = Remote(
    "https://mattmahoney.net/dc/enwik8.zip",
    "enwik8.zip",
    # Of the file as several public repositories pin it; the md5 of what is in it is held as well.
    sha256="547994d9980ebed1288380d652999f38a14fe291a6247c157c3d33d4932534bc",
    size_bytes=36_445_475,
)
MISSING = "enwik8, enwik8.zip or enwik8.gz"

_NAMES = ("enwik8", "enwik8.zip", "enwik8.gz")
_CHUNK = 1 << 20


@dataclass(frozen=True)
class Text:
    """The first ``size_bytes`` bytes of what ``path`` holds, and their ``md5``.

    ``file_lacks`` says what the file lacks of enwik8 and ``partial`` what the text lacks; empty where that is nothing.
    """

    path: Path
    size_bytes: int
    md5: str
    file_lacks: str
    partial: str

    def read(self) -> bytearray:
        """The bytes. Raises ``UserError`` where they are not those that were examined."""
        text = bytearray()
        for chunk in _chunks(self.path, self.size_bytes):
            text += chunk
        if hashlib.md5(text, usedforsecurity=False).hexdigest() != self.md5:
            raise UserError(f"task.source: what {self.path} holds does not have the md5 {self.md5}; move it away")
        return text


def find_text(path: Path) -> Path | None:
    """The file at ``path``, or the one in that folder; a prefix called enwik8_first… where there is no other."""
    files = [path, *(path / name for name in _NAMES), *sorted(path.glob("enwik8_first*"))]
    return next((file for file in files if file.is_file()), None)


def examine(path: Path, first_bytes: int | None, memory: Path) -> Text:
    """What the text in a file is, read to its end unless it is known; ``memory`` is where checksums are remembered.

    A file is read up to 100,000,000 bytes: enwik9, for one, begins with enwik8. Raises ``UserError`` where it cannot be
    read or holds less than ``first_bytes``.
    """
    wanted = first_bytes or WHOLE_BYTES
    official = path.stat().st_size == REMOTE.size_bytes and sha256_of_file(path, memory) == REMOTE.sha256
    if official and wanted == WHOLE_BYTES:
        return Text(path, WHOLE_BYTES, WHOLE_MD5, "", "")
    whole = hashlib.md5(usedforsecurity=False)
    front = whole if wanted == WHOLE_BYTES else whole.copy()
    opening, size = b"", 0
    for chunk in _chunks(path, wanted if official else WHOLE_BYTES):
        whole.update(chunk)
        if front is not whole:
            front.update(chunk[: max(0, wanted - size)])
        opening = (opening + chunk)[: len(OPENING)]
        size += len(chunk)
    if size < (first_bytes or 0):
        raise UserError(f"task.bytes={first_bytes}: {path} holds only {size:,} bytes; lower task.bytes")
    used = min(wanted, size)
    if official or whole.hexdigest() == WHOLE_MD5:
        return Text(path, used, front.hexdigest(), "", _prefix(used) if used < WHOLE_BYTES else "")
    if size < WHOLE_BYTES and opening == OPENING[: len(opening)]:
        return Text(path, used, front.hexdigest(), _prefix(size), _prefix(used))
    lacks, partial = (f"{some:,} bytes of a file that is not enwik8" for some in (size, used))
    return Text(path, used, front.hexdigest(), lacks, partial)


def _prefix(size_bytes: int) -> str:
    return f"the first {size_bytes:,} of {WHOLE_BYTES:,} bytes"


def _chunks(path: Path, limit: int) -> Iterator[bytes]:
    """What a file holds, up to ``limit`` bytes."""
    with open_compressed(path) as stream:
        while limit > 0 and (chunk := stream.read(min(limit, _CHUNK))):
            limit -= len(chunk)
            yield chunk
