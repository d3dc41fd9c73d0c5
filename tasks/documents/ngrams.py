"""Hashed n-grams of words and of bytes, as features of floors (baselines without a model)."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from lra_bench.data.compiled import compiled

if TYPE_CHECKING:
    from scipy.sparse import csr_matrix

    from lra_bench.data.examples import Examples

BITS = 18
BUCKETS = 1 << BITS
BYTES_PER_GRAM = 5
_GRAM = np.uint64((1 << 8 * BYTES_PER_GRAM) - 1)


def word_counts(examples: Examples) -> csr_matrix:
    """Count words and pairs of consecutive words, hashed to ``BUCKETS`` columns, of each document.

    A word is a sequence of letters, digits and bytes beyond ASCII; upper case counts as lower case.

    Args:
        examples: The documents, as bytes + 1.

    Returns:
        The counts, (D, ``BUCKETS``); documents of pairs are in the order of the pairs.
    """
    return _counts(examples, _hash_words)


def byte_counts(examples: Examples) -> csr_matrix:
    """Count sequences of ``BYTES_PER_GRAM`` bytes in each document; see ``word_counts``."""
    return _counts(examples, _hash_bytes)


def _counts(examples: Examples, hashes: Any) -> csr_matrix:
    from scipy.sparse import csr_matrix

    lengths = examples.lengths.ravel()
    keys = np.empty(len(examples.values) + len(lengths), dtype=np.uint64)
    ends = np.zeros(len(lengths) + 1, dtype=np.int64)
    hashes(examples.values, lengths, keys, ends)
    # The high bits of a product depend on all bits of its factors.
    columns = (keys[: ends[-1]] >> np.uint64(64 - BITS)).astype(np.int32)
    counts = csr_matrix((np.ones(len(columns), dtype=np.float32), columns, ends), (len(lengths), BUCKETS))
    counts.sum_duplicates()
    return counts


@compiled
def _hash_words(values: Any, lengths: Any, keys: Any, ends: Any) -> None:
    """Write a hash of each word and each pair of words to ``keys``, and the ends of the documents in it to ``ends``."""
    factor, place, count = np.uint64(0x9E3779B97F4A7C15), 0, 0
    for document in range(len(lengths)):
        word, before = np.uint64(0), np.uint64(0)
        for offset in range(lengths[document] + 1):
            byte = np.int64(values[place + offset]) - 1 if offset < lengths[document] else np.int64(0)
            if 65 <= byte <= 90:
                byte += 32
            if byte >= 128 or 97 <= byte <= 122 or 48 <= byte <= 57:
                word = (word + np.uint64(byte)) * factor
                word ^= word >> np.uint64(32)
            elif word:
                keys[count] = word * factor
                count += 1
                if before:
                    keys[count] = (word + (before ^ factor) * factor) * factor
                    count += 1
                before, word = word, np.uint64(0)
        place += lengths[document]
        ends[document + 1] = count


@compiled
def _hash_bytes(values: Any, lengths: Any, keys: Any, ends: Any) -> None:
    """Write a hash of each sequence of bytes to ``keys``, and the ends of the documents in it to ``ends``."""
    factor, place, count = np.uint64(0x9E3779B97F4A7C15), 0, 0
    for document in range(len(lengths)):
        gram = np.uint64(0)
        for offset in range(lengths[document]):
            gram = ((gram << np.uint64(8)) | np.uint64(values[place + offset])) & _GRAM
            if offset >= BYTES_PER_GRAM - 1:
                keys[count] = gram * factor
                count += 1
        place += lengths[document]
        ends[document + 1] = count
