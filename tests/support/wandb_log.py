"""A reader of W&B's transaction log: blocks as in LevelDB's log, holding messages of wandb's own protocol.

A file begins with ``:W&B``, a magic number and a version. Blocks of 32 KiB follow, counted from the file's begin;
each chunk has a checksum (IEEE CRC-32 of kind and data), a length, and a kind that says whether it is a whole record,
or the first, a middle or the last part of one. What remains of a block too short for a header is zero.
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
    """Whole records of a log's bytes; ``ValueError`` where it is damaged or cut."""
    ident, magic, version = FILE_HEADER.unpack_from(data)
    if (ident, magic, version) != (b":W&B", 0xBEE1, 0):
        raise ValueError(f"no W&B log: begins with {data[:7]!r}")
    position, parts = FILE_HEADER.size, b""
    while position < len(data):
        left = BLOCK_BYTES - position % BLOCK_BYTES
        if left < CHUNK_HEADER.size:
            position += left
            continue
        checksum, length, kind = CHUNK_HEADER.unpack_from(data, position)
        begin = position + CHUNK_HEADER.size
        chunk = data[begin : begin + length]
        if len(chunk) != length or zlib.crc32(bytes([kind]) + chunk) != checksum:
            raise ValueError(f"damaged at byte {position}")
        if (kind in (FULL, FIRST)) != (parts == b"") or kind not in (FULL, FIRST, MIDDLE, LAST):
            raise ValueError(f"chunk of kind {kind} out of turn at byte {position}")
        parts += chunk
        position = begin + length
        if kind in (FULL, LAST):
            yield parts
            parts = b""
    if parts:
        raise ValueError("ends within a record")


def records(path: Path) -> list[Any]:
    """The messages of a log file, each a ``wandb_internal_pb2.Record``."""
    messages = []
    for payload in payloads(path.read_bytes()):
        message = wandb_internal_pb2.Record()
        message.ParseFromString(payload)
        messages.append(message)
    return messages


def only_log(folder: Path) -> Path:
    """The log of the one offline run under ``folder``."""
    (path,) = folder.rglob("offline-run-*/*.wandb")
    return path


def summary(path: Path) -> dict[str, Any]:
    """The final summary of a run: later updates over earlier ones."""
    found: dict[str, Any] = {}
    for message in records(path):
        if message.WhichOneof("record_type") == "summary":
            found |= {_name(item): json.loads(item.value_json) for item in message.summary.update}
    return found


def history(path: Path) -> list[dict[str, Any]]:
    """What was logged, call by call."""
    return [
        {_name(item): json.loads(item.value_json) for item in message.history.item}
        for message in records(path)
        if message.WhichOneof("record_type") == "history"
    ]


def artifacts(path: Path) -> list[Any]:
    """The artifacts of a run."""
    return [message.artifact for message in records(path) if message.WhichOneof("record_type") == "artifact"]


def config(path: Path) -> dict[str, Any]:
    """The configuration that a run began with."""
    return {
        item.key: json.loads(item.value_json)
        for message in records(path)
        if message.WhichOneof("record_type") == "run"
        for item in message.run.config.update
    }


def _name(item: Any) -> str:
    return item.key or "/".join(item.nested_key)
