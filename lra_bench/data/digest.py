"""Checksums: of files, remembered while a file does not change, and of settings."""

from __future__ import annotations

import hashlib
import json
from contextlib import suppress
from pathlib import Path
from typing import Any

from lra_bench.runtime.files import replacing, writes_cache


def sha256_of_file(path: Path, memory: Path | None = None) -> str:
    """The sha256 of a file in hexadecimal.

    ``memory`` is a folder where digests are remembered by path, size and time of change, so that a large file is
    read once; a folder that cannot be written is no error.
    """
    if memory is None:
        return _digest(path)
    status = path.stat()
    where = str(path.resolve())
    state = [where, status.st_size, status.st_mtime_ns]
    note = memory / f"{hashlib.sha256(where.encode()).hexdigest()[:32]}.json"
    try:
        known = json.loads(note.read_text())
        if known["state"] == state:
            return str(known["sha256"])
    except (OSError, ValueError, KeyError, TypeError):
        pass  # unknown, or cut short: read the file again
    digest = _digest(path)
    if not writes_cache():
        return digest
    with suppress(OSError), replacing(note) as aside:
        aside.write_text(json.dumps({"state": state, "sha256": digest}))
    return digest


def settings_digest(*parts: Any) -> str:
    """Sixteen hexadecimal digits that change whenever a part does; parts are plain JSON values."""
    return hashlib.sha256(json.dumps(parts, sort_keys=True).encode()).hexdigest()[:16]


def _digest(path: Path) -> str:
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()
