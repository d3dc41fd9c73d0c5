"""Read ListOps tables of Long Range Arena and of the original ListOps."""

from __future__ import annotations

from codecs import BOM_UTF8
from collections.abc import Iterator
from pathlib import Path

import numpy as np

from lra_bench.contracts import DataCache, UserError
from lra_bench.data.archives import open_compressed
from lra_bench.data.cache import Advance
from lra_bench.data.examples import Examples
from lra_bench.data.sources import locate

from .trees import IDS, LABEL, describe, explain

RELEASE = "https://storage.googleapis.com/long-range-arena/lra_release.gz"
FILE_SPLITS = {"train": "train", "validation": "val", "test": "test"}
_PATTERNS = ("basic_{}.tsv", "basic_{}.tsv.gz", "lra_generator_basic_{}.tsv", "lra_generator_basic_{}.tsv.gz")
_LINES_PER_CHUNK = 512
_ID_OF = {symbol.encode(): number for symbol, number in IDS.items()}


def find_files(source: str, folders: tuple[str, ...], cache: DataCache) -> dict[str, Path]:
    """Return the path of the file of each split.

    Args:
        source: Folder in which the files are, directly or in one of ``folders``; ``official`` for $LRA_BENCH_DATA and
            the folder of raw data of the cache.
        folders: Accepted folder names.
        cache: The cache.

    Returns:
        Paths by split.

    Raises:
        UserError: If a file is missing.
    """
    missing = (
        "basic_train.tsv, basic_val.tsv and basic_test.tsv (plain or gzipped; Long Range Arena released them in "
        f"{RELEASE}; task.source=generated needs no files)"
    )
    return locate("listops", source, folders, _tables_in, (), cache, missing)


def _tables_in(folder: Path) -> dict[str, Path] | None:
    tables = {
        split: path
        for split, short in FILE_SPLITS.items()
        for pattern in reversed(_PATTERNS)
        if (path := folder / pattern.format(short)).is_file()
    }
    return tables if len(tables) == len(FILE_SPLITS) else None


def read_examples(path: Path, rows: int, max_length: int, advance: Advance) -> Iterator[Examples]:
    """Yield the first ``rows`` examples of a table in chunks.

    The columns are Source and Target, with a header or, without one, in any order. Parentheses are removed. The label
    must be the value of the tree.

    Args:
        path: A plain or gzipped table.
        rows: Largest number of examples.
        max_length: Largest number of tokens of an example.
        advance: Called with the number of examples read, for the progress bar.

    Raises:
        UserError: If a line is invalid or an example is too long. The message names file and line.
    """
    tokens: list[bytes] = []
    targets: list[int] = []
    target_first = False
    read = 0
    for number, line in _lines(path):
        fields = line.rstrip(b"\r\n").split(b"\t")
        if len(fields) != 2:
            raise _line_error(path, number, f"has {len(fields) - 1} tabs instead of 1")
        if number == 1:
            if fields == [b"Source", b"Target"]:
                continue
            target_first = fields == [b"Target", b"Source"] or _is_digit(fields[0])
            if fields == [b"Target", b"Source"]:
                continue
        source, target = reversed(fields) if target_first else fields
        tokens.append(_tokens(source, path, number, max_length))
        if not _is_digit(target):
            raise _line_error(path, number, f"has the label {_quote(target)} instead of a digit")
        targets.append(int(target))
        read += 1
        if len(tokens) == _LINES_PER_CHUNK or read == rows:
            yield _checked(tokens, targets, path, number)
            advance(len(tokens))
            tokens, targets = [], []
        if read == rows:
            return
    if not read:
        raise UserError(f"task.source: {path} contains no examples")
    if tokens:
        yield _checked(tokens, targets, path, number)
        advance(len(tokens))


def _lines(path: Path) -> Iterator[tuple[int, bytes]]:
    with open_compressed(path) as file:
        for number, line in enumerate(file, start=1):
            yield number, line.removeprefix(BOM_UTF8) if number == 1 else line


def _tokens(source: bytes, path: Path, number: int, max_length: int) -> bytes:
    symbols = source.translate(None, b"()").split()
    try:
        tokens = bytes([_ID_OF[symbol] for symbol in symbols])
    except KeyError as error:
        raise _line_error(path, number, f"has the unknown symbol {_quote(error.args[0])}") from None
    if len(tokens) > max_length:
        raise _line_error(path, number, f"has {len(tokens):,} tokens, more than task.max_length={max_length}")
    return tokens


def _checked(tokens: list[bytes], targets: list[int], path: Path, last_line: int) -> Examples:
    """Return the lines up to ``last_line`` as examples. Raises ``UserError`` if a label is not the value of a tree."""
    lengths = np.array([len(row) for row in tokens], dtype=np.int64)
    examples = Examples(np.frombuffer(b"".join(tokens), dtype=np.uint8), lengths, np.array(targets, dtype=np.int64))
    values = describe(examples.values, examples.starts, examples.lengths)[:, LABEL]
    wrong = np.flatnonzero(values != examples.targets)
    if len(wrong):
        row = int(wrong[0])
        fault = explain(int(values[row]), targets[row])
        raise _line_error(path, last_line - len(tokens) + 1 + row, f"is not a valid example: {fault}")
    return examples


def _is_digit(field: bytes) -> bool:
    return len(field) == 1 and field.isdigit()


def _quote(field: bytes) -> str:
    text = field.decode(errors="replace")
    return repr(text if len(text) <= 20 else text[:20] + "…")


def _line_error(path: Path, number: int, what: str) -> UserError:
    return UserError(f"task.source: line {number} of {path} {what}")
