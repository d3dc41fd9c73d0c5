"""Texts as sequences of bytes: token ids, truncation, subsets, histograms, filler."""

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
    """Return whether a text is valid UTF-8. It then has no byte above 0xF4, so that byte + 1 fits into uint8."""
    try:
        text.decode()
    except UnicodeDecodeError:
        return False
    return True


def to_tokens(text: bytes) -> Tokens:
    """Return each byte plus one, (N,) uint8; the text is UTF-8, possibly truncated."""
    return np.frombuffer(text, dtype=np.uint8) + np.uint8(1)


def to_bytes(tokens: NDArray[np.integer]) -> bytes:
    """Return the text of tokens of any integer type; the inverse of ``to_tokens``."""
    return (tokens - 1).astype(np.uint8).tobytes()


def short_digest(content: bytes) -> int:
    """Return a 64-bit digest as a signed integer."""
    return int.from_bytes(hashlib.blake2b(content, digest_size=8).digest(), "little", signed=True)


def draw_rows(targets: NDArray[np.integer], rows: int, seed: int) -> Integers:
    """Return ascending indices of ``rows`` examples, stratified by class; of all examples if there are no more."""
    return np.arange(len(targets)) if rows >= len(targets) else hold_out(targets, rows, seed)[1]


def texts_of(column: ListColumn, row: int, length: int) -> list[Tokens]:
    """Return the first ``length`` tokens of each document of an example (one or two)."""
    documents: tuple[int | None, ...] = (None,) if column.lengths.ndim == 1 else (0, 1)
    return [column.row(row, document)[:length] for document in documents]


def cut_rows(column: ListColumn, targets: NDArray[np.integer], rows: Integers, length: int) -> Iterator[Examples]:
    """Yield the first ``length`` tokens of each document of the examples with indices ``rows``, in chunks."""
    for start in range(0, len(rows), ROWS_PER_CHUNK):
        chunk = rows[start : start + ROWS_PER_CHUNK]
        yield joined([texts_of(column, row, length) for row in chunk.tolist()], targets[chunk])


def joined(rows: Sequence[Sequence[NDArray[np.integer]]], targets: NDArray[np.integer]) -> Examples:
    """Concatenate the documents of examples (one or two each) into ``Examples``."""
    lengths = np.array([[len(document) for document in row] for row in rows], dtype=np.int64)
    values = np.concatenate([document for row in rows for document in row])
    return Examples(values, lengths if lengths.shape[1] > 1 else lengths[:, 0], targets)


def byte_shares(examples: Examples) -> NDArray[np.float32]:
    """Return the relative frequency of each byte in each document, (R, 256), or (R, 2, 256) for pairs."""
    lengths = examples.lengths.ravel()
    shares = np.empty((len(lengths), VOCABULARY_SIZE - 1), dtype=np.float32)
    for place, end, length in zip(shares, np.cumsum(lengths).tolist(), lengths.tolist(), strict=True):
        text = examples.values[end - length : end]
        place[:] = np.bincount(text, minlength=VOCABULARY_SIZE)[1:] / length
    return shares.reshape(*examples.lengths.shape, -1)


def surround(
    text: Tokens, length: int, kinds: Sequence[Callable[[], Tokens]], generator: np.random.Generator
) -> tuple[Tokens, int]:
    """Insert ``text`` at a random position between other texts.

    Every kind of text fills the same number of bytes to within one: complete texts, each followed by a space, of which
    the last is truncated. The texts are in random order. ``text`` starts at every byte with the same probability, so
    the text at that position may be split.

    Args:
        text: The text to surround.
        length: Length of the result in tokens.
        kinds: Functions that return a random text of their kind.
        generator: Random generator.

    Returns:
        The tokens (``length``,), and the position at which ``text`` starts.
    """
    missing = length - len(text)
    pieces: list[Tokens] = []
    for number, draw in enumerate(kinds):
        remaining = (missing + number) // len(kinds)
        while remaining > 0:
            piece = np.concatenate([draw(), _SPACE])[:remaining]
            pieces.append(piece)
            remaining -= len(piece)
    order = generator.permutation(len(pieces)).tolist()
    around = np.concatenate([pieces[place] for place in order] or [_SPACE[:0]])
    start = int(generator.integers(missing + 1))
    return np.concatenate([around[:start], text, around[start:]]), start
