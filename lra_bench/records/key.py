"""The key of a cell, and the paths of its files."""

from __future__ import annotations

import re
from dataclasses import dataclass
from pathlib import PurePosixPath

from lra_bench.contracts import UserError

from .values import LARGEST, shown

_SAFE = re.compile(r"[A-Za-z0-9][A-Za-z0-9._+-]{0,99}")
_SEARCH = re.compile(r"-(searched|optuna|trial)$")
_VERSION = re.compile(r"-v\d+$")


@dataclass(frozen=True, order=True)
class CellKey:
    """The key of a cell of the grid, which determines the paths of its files.

    ``protocol`` includes the version of the protocol from the second on, such as ``small-v2``, and ends in
    ``-searched`` if the learning rate was searched, in ``-optuna`` if other options were, and in ``-trial`` in trials
    of a search, so that such results are in different rankings. Raises ``UserError`` if a part cannot be used as a
    file name or the seed is not an integer from 0 to 2⁶³ - 1.
    """

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
                    f"{part}={shown(value)}: is used as a folder name; use up to 100 letters, digits and . _ + -, "
                    "beginning with a letter or digit"
                )
        if isinstance(self.seed, bool) or not isinstance(self.seed, int) or not 0 <= self.seed < LARGEST:
            raise UserError(f"seed={shown(self.seed)}: set seed to a non-negative integer")

    @property
    def protocol_name(self) -> str:
        """Name of the protocol without its version and without the mark of a search."""
        return _VERSION.sub("", self.unsearched_protocol)

    @property
    def unsearched_protocol(self) -> str:
        """Name and version of the protocol without the mark of a search."""
        return _SEARCH.sub("", self.protocol)

    def has_protocol(self, wanted: str | None) -> bool:
        """Return whether ``wanted`` is None, the name of the protocol, or its name with the version."""
        return wanted in (None, self.protocol, self.protocol_name)

    def folder(self) -> PurePosixPath:
        """Return the cell's folder, relative to ``<results>/runs``; all seeds share it."""
        return PurePosixPath(self.task, self.model, self.hardware, f"{self.protocol}-{self.hash}")

    def file(self, suffix: str) -> PurePosixPath:
        """Return the cell's file with a suffix (``json``, ``curves.parquet``), relative to ``<results>/runs``."""
        return self.folder() / f"seed{self.seed}.{suffix}"

    def __str__(self) -> str:
        return str(self.folder() / f"seed{self.seed}")
