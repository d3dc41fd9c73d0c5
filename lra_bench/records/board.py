"""Boards: packed records, and ``board.json`` with the version of their schema and the digests of the files."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, TypedDict, cast

from lra_bench.contracts import UserError
from lra_bench.data.digest import sha256_of_file
from lra_bench.runtime.files import read_whole, replacing

from .packed import RECORDS, packed
from .profiles import PROFILES
from .store import TABLES, load_all
from .tables import curves, predictions
from .upgrades import SCHEMA_VERSION
from .values import check, checked_json

if TYPE_CHECKING:
    from .schema import Record

BOARD = "board.json"
FILE = re.compile(
    rf"{re.escape(RECORDS)}|(?:{'|'.join(TABLES)})-[0-9a-f]{{8}}\.parquet|{PROFILES}/\w[\w.-]*/\w[\w.-]*\.json"
)
"""Paths of the files of a board, relative to its folder."""


class Board(TypedDict):
    """The content of ``board.json``: version of the records' schema, number of records, SHA-256 digests by file."""

    schema_version: int
    records: int
    sha256: dict[str, str]


def files_of(root: Path) -> dict[str, Path]:
    """Return the packed files and the profiles of a results folder by their relative path, sorted."""
    found = (path.relative_to(root).as_posix() for path in root.glob("**/*") if path.is_file())
    return {name: root / name for name in sorted(found) if FILE.fullmatch(name)}


def write_board(root: Path) -> None:
    """Write ``board.json`` of a folder of packed records. Raises ``OSError`` if it cannot be written."""
    digests = {name: sha256_of_file(path) for name, path in files_of(root).items()}
    content: Board = {"schema_version": SCHEMA_VERSION, "records": len(packed(root)), "sha256": digests}
    with replacing(root / BOARD) as temporary:
        temporary.write_text(json.dumps(content, indent=1) + "\n", encoding="utf-8")


def read_board(root: Path) -> Board:
    """Read ``board.json``. Raises ``UserError`` if it is missing or invalid, or names other files than ``FILE``."""
    path = root / BOARD
    try:
        content = checked_json(read_whole(path, 2**20, follow_links=False))
        check(content, Board)
    except (OSError, ValueError) as error:
        reason = (error.strerror if isinstance(error, OSError) else None) or error
        raise UserError(f"{path}: cannot be read ({reason}); lra-bench results pack writes it") from error
    except UserError as error:
        raise UserError(f"{path}: {str(error).removeprefix('record: ')}; lra-bench results pack writes it") from error
    for name in content["sha256"]:
        if not FILE.fullmatch(name):
            raise UserError(f"{path}: {name} is no file of a board")
    return cast(Board, content)


def changes(root: Path) -> Iterator[str]:
    """Yield how each file of a board differs from its ``board.json``; nothing if ``root`` is no board."""
    if not any((root / name).exists() for name in (RECORDS, BOARD)):
        return
    try:
        board = read_board(root)
    except UserError as error:
        yield str(error)
        return
    for name, expected in board["sha256"].items():
        path = root / name
        if not path.is_file():
            yield f"{path} is missing"
        elif (found := sha256_of_file(path)) != expected:
            yield f"{path} has sha256 {found[:8]}… instead of {expected[:8]}…"


def overwritten(old: Path, new: Path) -> Iterator[str]:
    """Yield each cell whose packed record in ``old``, or a table of it, is missing or different in ``new``."""
    kept = {record.key: record for record in load_all(new)}
    for record in load_all(old):
        if (other := kept.get(record.key)) is None or not _same(record, other):
            yield str(record.key)


def _same(one: Record, other: Record) -> bool:
    """Return whether two records and their tables are equal; the names of the tables may differ."""
    if replace(one, artifacts={}) != replace(other, artifacts={}):
        return False
    frames = [(table(one), table(other)) for table in (curves, predictions)]
    return all(a is b if a is None or b is None else a.equals(b) for a, b in frames)
