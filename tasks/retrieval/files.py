"""Read AAN document pairs from the tables of Long Range Arena: plain, gzipped or in its archive."""

from __future__ import annotations

from codecs import BOM_UTF8
from collections.abc import Callable, Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import BinaryIO

import numpy as np
from numpy.typing import NDArray

from lra_bench.contracts import UserError
from lra_bench.data.archives import open_compressed, open_inside
from lra_bench.data.cache import Advance
from lra_bench.data.digest import settings_digest, sha256_of_file
from lra_bench.data.examples import Examples

from ..documents.bytes import ROWS_PER_CHUNK, Tokens, is_utf8, joined, short_digest, to_tokens

RELEASE = "https://storage.googleapis.com/long-range-arena/lra_release.gz"
FILE_SPLITS = {"train": "train", "validation": "eval", "test": "test"}
MISSING = (
    "new_aan_pairs.train.tsv, new_aan_pairs.eval.tsv and new_aan_pairs.test.tsv (plain or gzipped; they are not "
    f"downloaded automatically, Long Range Arena released them in {RELEASE}; task=retrieval_synthetic needs no files)"
)
LONGEST_LINE = 1 << 24

_TABLES = ("new_aan_pairs.{}.tsv", "new_aan_pairs.{}.tsv.gz")
_FOLDERS = ("", "tsv_data", "lra_release/tsv_data", "lra_release/lra_release/tsv_data")
_ARCHIVES = ("lra_release.gz", "lra_release.tar.gz", "lra_release.tar")


@dataclass(frozen=True)
class PairSource:
    """Tables of document pairs, one for each split.

    Attributes:
        place: Description of the location, for messages.
        state: Function that returns a digest that changes with the files, given the folder in which checksums are
            stored.
        table: Function that opens the table of a split as a context manager of (name, binary stream).
    """

    place: str
    state: Callable[[Path], str]
    table: Callable[[str], AbstractContextManager[tuple[str, BinaryIO]]]


def find_pairs(path: Path) -> PairSource | None:
    """Return the pairs at ``path``, an archive of the release or a folder with its tables (plain first), or None."""
    if path.is_file():
        return _archive(path)
    for folder in (path / name for name in _FOLDERS):
        tables = {
            split: table
            for split, short in FILE_SPLITS.items()
            for pattern in reversed(_TABLES)
            if (table := folder / pattern.format(short)).is_file()
        }
        if len(tables) == len(FILE_SPLITS):
            return PairSource(f"files of {folder}", partial(_state_of_tables, tables), partial(_open_table, tables))
    for name in _ARCHIVES:
        if (path / name).is_file():
            return _archive(path / name)
    return None


def read_pairs(
    source: PairSource, split: str, length: int, advance: Advance, wanted: NDArray[np.bool_] | None = None
) -> Iterator[Examples]:
    """Yield the first ``length`` bytes of both documents of the pairs of a split, in chunks.

    A line of a table contains label (0 or 1), the names of two papers and their texts, separated by tabs and not
    quoted. Extra columns of the result are ``digest`` of the complete texts, ``first`` and ``second``, digests of the
    names of the papers, and ``whole``, the length of the longer text in bytes. An empty document becomes one space, so
    that no example is empty.

    Args:
        source: The tables.
        split: Name of the split.
        length: Number of bytes of each document.
        advance: Called with the number of lines read, for the progress bar.
        wanted: Whether to yield each pair, (R,); None for all pairs.

    Raises:
        UserError: If a line is invalid. The message names file and line.
    """
    documents: list[list[Tokens]] = []
    numbers: list[tuple[int, ...]] = []
    read = 0
    with source.table(split) as (name, table):
        for line_number, line in enumerate(_lines(table, name), start=1):
            if wanted is None or wanted[line_number - 1]:
                texts, about = _pair(line, f"line {line_number} of {name}")
                documents.append([to_tokens(text[:length]) for text in texts])
                numbers.append(about)
            read += 1
            if len(documents) == ROWS_PER_CHUNK:
                yield _examples(documents, numbers)
                documents, numbers = [], []
                advance(read)
                read = 0
    if documents:
        yield _examples(documents, numbers)
        advance(read)


def _pair(line: bytes, where: str) -> tuple[list[bytes], tuple[int, ...]]:
    """Return the two texts of a line, and its label followed by the extra columns of ``read_pairs``."""
    fields = line.rstrip(b"\r\n").split(b"\t")
    if len(fields) != 5:
        raise UserError(f"task.source: {where} has {len(fields) - 1} tabs instead of 4")
    label, first, second, *texts = fields
    if not is_utf8(line):
        raise UserError(f"task.source: {where} is not UTF-8")
    whole = max(map(len, texts))
    return [text or b" " for text in texts], (
        _label(label, where),
        short_digest(b"\t".join(texts)),
        short_digest(first),
        short_digest(second),
        whole,
    )


def _label(field: bytes, where: str) -> int:
    try:
        number = float(field)
    except ValueError:
        number = -1.0
    if number not in (0.0, 1.0):
        shown = field[:20].decode(errors="replace")
        raise UserError(f"task.source: {where} has the label {shown!r} instead of 0.0 or 1.0")
    return int(number)


def _examples(documents: list[list[Tokens]], about: list[tuple[int, ...]]) -> Examples:
    targets, *extra = np.array(about, dtype=np.int64).T
    examples = joined(documents, targets)
    names = ("digest", "first", "second", "whole")
    return Examples(examples.values, examples.lengths, targets, dict(zip(names, extra, strict=True)))


def _lines(table: BinaryIO, name: str) -> Iterator[bytes]:
    number = 0
    while line := table.readline(LONGEST_LINE):
        number += 1
        if len(line) == LONGEST_LINE:
            raise UserError(f"task.source: line {number} of {name} is longer than {LONGEST_LINE:,} bytes")
        yield line.removeprefix(BOM_UTF8) if number == 1 else line


def _state_of_tables(tables: Mapping[str, Path], memory: Path) -> str:
    return settings_digest([sha256_of_file(tables[split], memory) for split in FILE_SPLITS])


@contextmanager
def _open_table(tables: Mapping[str, Path], split: str) -> Iterator[tuple[str, BinaryIO]]:
    with open_compressed(tables[split]) as table:
        yield str(tables[split]), table


def _archive(path: Path) -> PairSource:
    return PairSource(str(path), lambda memory: sha256_of_file(path, memory), partial(_open_member, path))


@contextmanager
def _open_member(path: Path, split: str) -> Iterator[tuple[str, BinaryIO]]:
    name = _TABLES[0].format(FILE_SPLITS[split])
    with open_inside(path, lambda member: member.rpartition("/")[2] == name) as table:
        if table is None:
            raise UserError(f"task.source: {path} does not contain {name}")
        yield f"{name} in {path}", table
