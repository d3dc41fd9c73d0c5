"""The ``Cell`` dataclass, the initial record of a cell, and the exit codes of its process."""

from __future__ import annotations

import json
import shlex
from dataclasses import asdict, dataclass, field
from datetime import UTC, datetime
from typing import Any

from lra_bench.config.schema import CellConfig
from lra_bench.config.serialization import as_dict, from_dict
from lra_bench.measurements.rate_search import RateSearch
from lra_bench.records.key import CellKey
from lra_bench.records.schema import Record


@dataclass(frozen=True)
class Cell:
    """A cell of the grid: its key, its configuration and the options that the user changed.

    ``position`` is None unless the user chose a position. ``config_dir`` is the folder of ``--config-dir``, which was
    on the import path when the cell was composed. ``search`` is the search that chose ``config.train.lr``, None before
    it has ended. ``sources`` are the texts of the user's modules and edited ones (``config.sources``), by module.
    """

    key: CellKey
    config: CellConfig
    overrides: tuple[str, ...]
    differences: dict[str, Any]
    modified: tuple[str, ...]
    position: str | None
    fingerprint: str
    config_dir: str | None = None
    search: RateSearch | None = None
    sources: dict[str, str] = field(default_factory=dict)

    @property
    def command(self) -> str:
        """Return the command that measures this cell again."""
        folder = ["--config-dir", self.config_dir] if self.config_dir else []
        return shlex.join(["lra-bench", "bench", *folder, *self.overrides])

    def as_json(self) -> str:
        """Serialise the cell to JSON."""
        return json.dumps(asdict(self))

    @classmethod
    def from_json(cls, text: str) -> Cell:
        """Restore a cell from the output of ``as_json``."""
        raw = json.loads(text)
        return cls(
            **{
                **raw,
                "key": CellKey(**raw["key"]),
                "config": from_dict(raw["config"]),
                "overrides": tuple(raw["overrides"]),
                "modified": tuple(raw["modified"]),
            }
        )


def blank_record(cell: Cell, attempt: int, machine: Any) -> Record:
    """Return the initial record of a cell, whose environment section is ``machine``."""
    from lra_bench.records.environment import code_version

    started, code = now(), code_version()
    if cell.sources:
        code["sources"] = cell.sources
    return Record(
        status="interrupted",
        attempt=attempt,
        key=cell.key,
        variant={
            "label": str(cell.config.model.get("label", cell.key.model)),
            "differences": cell.differences,
            "position": cell.position,
        },
        config=as_dict(cell.config),
        protocol_modified=list(cell.modified),
        command=cell.command,
        started_at=started,
        finished_at=started,
        wall_seconds=None,
        code=code,
        environment=machine,
        search=cell.search,
    )


def now() -> str:
    """Return the current time in UTC in ISO 8601 format, to the second."""
    return datetime.now(UTC).isoformat(timespec="seconds")


def already_completed(record: Record | None, attempt: int) -> bool:
    """Return whether another process has already completed this ``attempt``."""
    return record is not None and record.attempt >= attempt and record.status != "interrupted"


RECORDED = 10
"""Exit code of a cell's process if its record has a failure status; 1 is the exit code of a Python crash."""


def exit_code(status: str) -> int:
    """Return the exit code of a command whose record has this status."""
    return 0 if status in ("ok", "incompatible") else 1
