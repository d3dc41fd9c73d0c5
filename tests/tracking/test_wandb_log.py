"""The reader of W&B's transaction log, which other tests use."""

import zlib

import pytest

from tests.support.wandb_log import (
    BLOCK_BYTES,
    CHUNK_HEADER,
    FILE_HEADER,
    FIRST,
    FULL,
    LAST,
    payloads,
)

HEADER = FILE_HEADER.pack(b":W&B", 0xBEE1, 0)


def chunk(kind, data):
    return CHUNK_HEADER.pack(zlib.crc32(bytes([kind]) + data), len(data), kind) + data


def test_first_chunk_is_empty_if_only_its_header_fits_in_the_block():
    filler = b"x" * (BLOCK_BYTES - len(HEADER) - 2 * CHUNK_HEADER.size)
    begin = HEADER + chunk(FULL, filler) + chunk(FIRST, b"")
    assert len(begin) == BLOCK_BYTES
    assert list(payloads(begin + chunk(LAST, b"record"))) == [filler, b"record"]
    with pytest.raises(ValueError, match="ends within a record"):
        list(payloads(begin))


def test_last_chunk_without_a_first_one_is_an_error():
    with pytest.raises(ValueError, match="unexpected chunk of kind 4"):
        list(payloads(HEADER + chunk(LAST, b"record")))
