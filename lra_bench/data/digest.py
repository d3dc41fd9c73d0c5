"""Checksums of files, cached until a file changes, and digests of settings."""

from __future__ import annotations

import hashlib
import json
from contextlib import suppress
from pathlib import Path
from typing import Any

from lra_bench.runtime.files import replacing, writes_cache


def sha256_of_file(path: Path, memory: Path | None = None) -> str:
    """Return the sha256 of a file in hexadecimal.

    ``memory`` is a folder in which digests are cached by path, size and modification time, so that a large file is read
    once. It is not an error if the folder cannot be written.
    """
    if memory is None:
        return _digest(path)
    status = path.stat()
    absolute_path = str(path.resolve())
    state = [absolute_path, status.st_size, status.st_mtime_ns]
    entry = memory / f"{hashlib.sha256(absolute_path.encode()).hexdigest()[:32]}.json"
    try:
        known = json.loads(entry.read_text())
        if known["state"] == state:
            return str(known["sha256"])
    except (OSError, ValueError, KeyError, TypeError):
        pass  # missing or truncated: read the file
    digest = _digest(path)
    if not writes_cache():
        return digest
    with suppress(OSError), replacing(entry) as temporary:
        temporary.write_text(json.dumps({"state": state, "sha256": digest}))
    return digest


def settings_digest(*parts: Any) -> str:
    """Return a digest of JSON values, 16 hexadecimal digits."""
    return hashlib.sha256(json.dumps(parts, sort_keys=True).encode()).hexdigest()[:16]


def _digest(path: Path) -> str:
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()
