"""A reader of W&B's transaction log, which has the block format of LevelDB's log and contains protobuf messages.

A file begins with ``:W&B``, a magic number and a version. Its blocks have 32 KiB, counted from the start of the file.
Each chunk has a checksum (IEEE CRC-32 of kind and data), a length, and a kind: a complete record, or the first, a
middle or the last part of a record. The rest of a block is zero if it is too short for a header.
"""

from __future__ import annotations

import json
import struct
import zlib
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from wandb.proto import wandb_internal_pb2

BLOCK_BYTES = 32 * 1024
FILE_HEADER = struct.Struct("<4sHB")
CHUNK_HEADER = struct.Struct("<IHB")
FULL, FIRST, MIDDLE, LAST = 1, 2, 3, 4


def payloads(data: bytes) -> Iterator[bytes]:
    """Yield the records of a log. Raises ``ValueError`` if it is damaged or truncated."""
    ident, magic, version = FILE_HEADER.unpack_from(data)
    if (ident, magic, version) != (b":W&B", 0xBEE1, 0):
        raise ValueError(f"not a W&B log: begins with {data[:7]!r}")
    position = FILE_HEADER.size
    parts: bytes | None = None  # those of an unfinished record; its first chunk is empty if only a header fits
    while position < len(data):
        remaining = BLOCK_BYTES - position % BLOCK_BYTES
        if remaining < CHUNK_HEADER.size:
            position += remaining
            continue
        checksum, length, kind = CHUNK_HEADER.unpack_from(data, position)
        start = position + CHUNK_HEADER.size
        chunk = data[start : start + length]
        if len(chunk) != length or zlib.crc32(bytes([kind]) + chunk) != checksum:
            raise ValueError(f"damaged at byte {position}")
        if (kind in (FULL, FIRST)) != (parts is None) or kind not in (FULL, FIRST, MIDDLE, LAST):
            raise ValueError(f"damaged at byte {position}: unexpected chunk of kind {kind}")
        parts = (parts or b"") + chunk
        position = start + length
        if kind in (FULL, LAST):
            yield parts
            parts = None
    if parts is not None:
        raise ValueError("ends within a record")


def records(path: Path) -> list[Any]:
    """Return the messages of a log file, each a ``wandb_internal_pb2.Record``."""
    messages = []
    for payload in payloads(path.read_bytes()):
        message = wandb_internal_pb2.Record()
        message.ParseFromString(payload)
        messages.append(message)
    return messages


def only_log(folder: Path) -> Path:
    """Return the log of the only offline run under ``folder``."""
    (path,) = folder.rglob("offline-run-*/*.wandb")
    return path


def summary(path: Path) -> dict[str, Any]:
    """Return the final summary of a run; later updates override earlier ones."""
    found: dict[str, Any] = {}
    for message in records(path):
        if message.WhichOneof("record_type") == "summary":
            found |= {_name(item): json.loads(item.value_json) for item in message.summary.update}
    return found


def history(path: Path) -> list[dict[str, Any]]:
    """Return the logged values of each call."""
    return [
        {_name(item): json.loads(item.value_json) for item in message.history.item}
        for message in records(path)
        if message.WhichOneof("record_type") == "history"
    ]


def artifacts(path: Path) -> list[Any]:
    """Return the artifacts of a run."""
    return [message.artifact for message in records(path) if message.WhichOneof("record_type") == "artifact"]


def config(path: Path) -> dict[str, Any]:
    """Return the initial configuration of a run."""
    return {
        item.key: json.loads(item.value_json)
        for message in records(path)
        if message.WhichOneof("record_type") == "run"
        for item in message.run.config.update
    }


def _name(item: Any) -> str:
    return item.key or "/".join(item.nested_key)
