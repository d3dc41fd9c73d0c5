"""Texts as rows of bytes: token ids, cuts, subsets, histograms, and other texts around a row."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterator, Sequence

import numpy as np
from numpy.typing import NDArray

from lra_bench.data.columns import Integers, ListColumn
from lra_bench.data.examples import Examples
from lra_bench.data.splits import hold_out

Tokens = NDArray[np.uint8]  # (N,) byte + 1; 0 is padding

VOCABULARY_SIZE = 257
ROWS_PER_CHUNK = 1024
_SPACE = np.array([ord(" ") + 1], dtype=np.uint8)


def is_utf8(text: bytes) -> bool:
    """Whether a text can be decoded; it then has no byte above 0xF4, so that byte + 1 fits into a byte itself."""
    try:
        text.decode()
    except UnicodeDecodeError:
        return False
    return True


def to_tokens(text: bytes) -> Tokens:
    """Each byte plus one; the text is UTF-8, or the beginning of one."""
    return np.frombuffer(text, dtype=np.uint8) + np.uint8(1)


def to_bytes(tokens: NDArray[np.integer]) -> bytes:
    """The text that ``to_tokens`` was given, from tokens of any integer type."""
    return (tokens - 1).astype(np.uint8).tobytes()


def short_digest(content: bytes) -> int:
    """64 bits that tell texts apart, as a signed number."""
    return int.from_bytes(hashlib.blake2b(content, digest_size=8).digest(), "little", signed=True)


def draw_rows(targets: NDArray[np.integer], rows: int, seed: int) -> Integers:
    """Places of ``rows`` rows, every class in proportion, ascending; all of them where there are no more."""
    return np.arange(len(targets)) if rows >= len(targets) else hold_out(targets, rows, seed)[1]


def texts_of(column: ListColumn, row: int, length: int) -> list[Tokens]:
    """The first ``length`` tokens of a row, or of each of its two documents."""
    documents: tuple[int | None, ...] = (None,) if column.lengths.ndim == 1 else (0, 1)
    return [column.row(row, document)[:length] for document in documents]


def cut_rows(column: ListColumn, targets: NDArray[np.integer], rows: Integers, length: int) -> Iterator[Examples]:
    """The first ``length`` tokens of each document of ``rows``, in chunks."""
    for start in range(0, len(rows), ROWS_PER_CHUNK):
        chunk = rows[start : start + ROWS_PER_CHUNK]
        yield joined([texts_of(column, row, length) for row in chunk.tolist()], targets[chunk])


def joined(rows: Sequence[Sequence[Tokens]], targets: NDArray[np.integer]) -> Examples:
    """Rows of one document, or of two, as examples."""
    lengths = np.array([[len(document) for document in row] for row in rows], dtype=np.int64)
    values = np.concatenate([document for row in rows for document in row])
    return Examples(values, lengths if lengths.shape[1] > 1 else lengths[:, 0], targets)


def byte_shares(examples: Examples) -> NDArray[np.float32]:
    """How often each byte occurs in each document, as a share of its length: (R, 256), or (R, 2, 256) for pairs."""
    lengths = examples.lengths.ravel()
    shares = np.empty((len(lengths), VOCABULARY_SIZE - 1), dtype=np.float32)
    for place, end, length in zip(shares, np.cumsum(lengths).tolist(), lengths.tolist(), strict=True):
        text = examples.values[end - length : end]
        place[:] = np.bincount(text, minlength=VOCABULARY_SIZE)[1:] / length
    return shares.reshape(*examples.lengths.shape, -1)


def surround(
    text: Tokens, length: int, kinds: Sequence[Callable[[], Tokens]], generator: np.random.Generator
) -> tuple[Tokens, int]:
    """``text`` among other texts, ``length`` tokens in all, and where it begins.

    Each of ``kinds`` draws a text; every kind fills the same number of bytes (to within one), whole texts with a space
    after each, the last of its kind cut. They stand in random order, and ``text`` begins at any byte with the same
    probability, so that a text around it may be split.
    """
    missing = length - len(text)
    pieces: list[Tokens] = []
    for number, draw in enumerate(kinds):
        left = (missing + number) // len(kinds)
        while left > 0:
            piece = np.concatenate([draw(), _SPACE])[:left]
            pieces.append(piece)
            left -= len(piece)
    order = generator.permutation(len(pieces)).tolist()
    around = np.concatenate([pieces[place] for place in order] or [_SPACE[:0]])
    start = int(generator.integers(missing + 1))
    return np.concatenate([around[:start], text, around[start:]]), start
