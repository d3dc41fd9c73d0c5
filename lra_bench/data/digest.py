"""Checksums of files, cached until a file changes, and digests of settings."""

from __future__ import annotations

import hashlib
import json
import os
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any

from lra_bench.progress import bar
from lra_bench.runtime.files import read_whole, replacing, writes_cache

from .archives import read_files

LARGEST_JSON = 256 * 2**20
"""Maximum size of a JSON file in the cache, in bytes."""


def sha256_of_file(path: Path, memory: Path | None = None) -> str:
    """Return the sha256 of a file in hexadecimal.

    ``memory`` is a folder in which digests are cached by path, size and modification time, so that a large file is read
    once. It is not an error if the folder cannot be written.
    """

    def compute() -> str:
        with path.open("rb") as file:
            return hashlib.file_digest(file, "sha256").hexdigest()

    if memory is None:
        return compute()
    status = path.stat()
    return _remembered(path, [status.st_size, status.st_mtime_ns], memory, compute)


def sha256_of_folder(folder: Path, memory: Path) -> str:
    """Return the sha256 of the names and contents of all files in a folder, cached like ``sha256_of_file``."""
    states = _states(folder)

    def compute() -> str:
        digest = hashlib.sha256()
        with bar(len(states), f"computing the checksum of {folder}", unit="files") as advance:
            for name, content in read_files(folder, lambda name: True):
                digest.update(f"{name}\n{len(content)}\n".encode(errors="surrogateescape"))
                digest.update(content)
                advance(1)
        return digest.hexdigest()

    return _remembered(folder, [settings_digest(states)], memory, compute)


def state_of_folder(folder: Path) -> str:
    """Return a digest that changes with the names, sizes and modification times of the files in a folder."""
    return settings_digest(_states(folder))


def _states(folder: Path) -> list[list[Any]]:
    states = []
    for root, _, names in os.walk(folder):
        for name in names:
            path = os.path.join(root, name)  # noqa: PTH118 (faster than Path for 200,000 files)
            status = os.stat(path) if os.path.exists(path) else os.lstat(path)  # noqa: PTH110, PTH116
            states.append([path, status.st_size, status.st_mtime_ns])
    return sorted(states)


def _remembered(path: Path, state: list[Any], memory: Path, compute: Callable[[], str]) -> str:
    """Return the digest of a path from ``memory``, or compute and store it if ``state`` has changed."""
    absolute_path = str(path.resolve())
    state = [absolute_path, *state]
    entry = memory / f"{hashlib.sha256(absolute_path.encode(errors='surrogateescape')).hexdigest()[:32]}.json"
    try:
        known = json.loads(read_whole(entry, LARGEST_JSON))
        if known["state"] == state:
            return str(known["sha256"])
    except (OSError, ValueError, KeyError, TypeError):
        pass  # missing or truncated: read the file
    digest = compute()
    if not writes_cache():
        return digest
    with suppress(OSError), replacing(entry) as temporary:
        temporary.write_text(json.dumps({"state": state, "sha256": digest}))
    return digest


def settings_digest(*parts: Any) -> str:
    """Return a digest of JSON values, 16 hexadecimal digits."""
    return hashlib.sha256(json.dumps(parts, sort_keys=True).encode()).hexdigest()[:16]
