"""What names a cell, and where its files lie."""

from __future__ import annotations

import re
from dataclasses import dataclass
from pathlib import PurePosixPath

from lra_bench.contracts import UserError

from .values import LARGEST, shown

_SAFE = re.compile(r"[A-Za-z0-9][A-Za-z0-9._+-]{0,99}")


@dataclass(frozen=True, order=True)
class CellKey:
    """What names a cell of the grid, and where its files lie. Raises ``UserError`` where a part is no file name."""

    task: str
    model: str
    hardware: str
    protocol: str
    hash: str
    seed: int

    def __post_init__(self) -> None:
        for part in ("task", "model", "hardware", "protocol", "hash"):
            value = getattr(self, part)
            if not isinstance(value, str) or not _SAFE.fullmatch(value):
                raise UserError(
                    f"{part}={shown(value)}: becomes a folder of results, so use letters, digits and . _ + - alone, "
                    "begin with a letter or digit, and stay under 100"
                )
        if isinstance(self.seed, bool) or not isinstance(self.seed, int) or not 0 <= self.seed < LARGEST:
            raise UserError(f"seed={shown(self.seed)}: set seed to a whole number from 0 on")

    def folder(self) -> PurePosixPath:
        """The cell's folder, relative to ``<results>/runs``; seeds share it."""
        return PurePosixPath(self.task, self.model, self.hardware, f"{self.protocol}-{self.hash}")

    def file(self, suffix: str) -> PurePosixPath:
        """The cell's file of a kind (``json``, ``curves.parquet``), relative to ``<results>/runs``."""
        return self.folder() / f"seed{self.seed}.{suffix}"

    def __str__(self) -> str:
        return str(self.folder() / f"seed{self.seed}")
