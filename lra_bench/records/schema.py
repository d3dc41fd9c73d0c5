"""What one record holds, and what its statuses mean."""

from __future__ import annotations

import dataclasses
import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal

from lra_bench.contracts import UserError
from lra_bench.runtime.redaction import shareable

from .key import CellKey
from .points import Extrapolation
from .sections import (
    Capability,
    Code,
    Config,
    Data,
    Energy,
    Environment,
    Flops,
    Growth,
    Metric,
    Parameters,
    SpeedPoint,
    Training,
    Variant,
)
from .upgrades import SCHEMA_VERSION
from .values import NOT_STORED, check, plain, shown, stored_fields

STATUSES: Mapping[str, str] = {
    "ok": "finished, every figure that could be measured was",
    "diverged": "the loss or a gradient became infinite or not a number",
    "out_of_memory": "the device or the machine had too little memory",
    "timeout": "the time limit of the cell was reached",
    "incompatible": "the model does not run this task, with the reason",
    "failed": "an error ended the cell, with its first line and the last ones of its process",
    "interrupted": "stopped from outside; the same command resumes it",
}

FINISHED = ("ok", "diverged", "out_of_memory", "incompatible")
"""The statuses that are results."""

RETRIED = ("failed", "timeout", "out_of_memory")
"""The statuses of cells that may end otherwise when they are tried again, which is done on request alone."""


@dataclass(kw_only=True)
class Record:
    """One cell, measured: everything that later tables and figures read. Sections not reached are None or empty.

    ``training`` holds ``steps``, ``best_step``, ``train_seconds``, ``tokens_per_second`` and their like, by unit.
    ``floors`` are scores of rules without a model on the test split. ``last_lines`` are the last words of a process
    that failed. ``path`` is where it was loaded from, ``reference`` the name of the reference board that it belongs to,
    empty for the user's own.
    """

    schema_version: int = SCHEMA_VERSION
    status: str
    reason: str = ""
    last_lines: list[str] = field(default_factory=list)
    attempt: int = 1
    key: CellKey
    variant: Variant
    config: dict[str, Any]
    protocol_modified: list[str] = field(default_factory=list)
    command: str
    started_at: str
    finished_at: str
    wall_seconds: float | None
    code: Code
    data: Data | None = None
    environment: Environment
    parameters: Parameters | None = None
    training: Training | None = None
    speed: list[SpeedPoint] = field(default_factory=list)
    growth: dict[str, Growth] = field(default_factory=dict)
    flops: Flops | None = None
    energy: Energy | None = None
    metrics: dict[str, Metric] = field(default_factory=dict)
    floors: dict[str, float | None] = field(default_factory=dict)
    extrapolation: Extrapolation | None = None
    capability: Capability | None = None
    artifacts: dict[str, str] = field(default_factory=dict)
    path: Path | None = field(default=None, compare=False, repr=False, metadata=NOT_STORED)
    reference: str = field(default="", compare=False, repr=False, metadata=NOT_STORED)

    @property
    def metric(self) -> Literal["accuracy", "bits_per_character"] | None:
        """The name of the score, None where none was measured."""
        for measured in self.metrics.values():
            if "accuracy" in measured:
                return "accuracy"
            if "bits_per_character" in measured:
                return "bits_per_character"
        return None

    @property
    def higher_is_better(self) -> bool:
        """Whether a larger score is the better one."""
        return self.metric != "bits_per_character"

    def score(self, split: str = "test") -> float | None:
        """The score on ``split``, None where it was not measured."""
        name = self.metric
        measured = self.metrics.get(split)
        return None if name is None or measured is None else measured.get(name)

    def best_floor(self) -> tuple[str, float] | None:
        """The strongest rule without a model, by name; None where none was computed."""
        floors = {name: score for name, score in self.floors.items() if score is not None}
        if not floors:
            return None
        name = (max if self.higher_is_better else min)(floors, key=lambda floor: floors[floor])
        return name, floors[name]

    @property
    def machine(self) -> str:
        """The hardware as tables and figures name it; a reference board's is followed by ``@`` and the board's name.

        Rows of the user's and of a board never share a machine, even if their hardware has the same name.
        """
        return f"{self.key.hardware}@{self.reference}" if self.reference else self.key.hardware

    @property
    def variant_name(self) -> str:
        """The model and what differs from its file: ``performer · features=64 · rope``."""
        return variant_name(self.key.model, self.variant["differences"], self.variant["position"])

    def to_dict(self) -> dict[str, Any]:
        """Plain JSON values, all of them finite, with nothing private in them; ``NOT_STORED`` stay out."""
        values = {name: plain(getattr(self, name)) for name in stored_fields(self)}
        cleaned: dict[str, Any] = shareable(values)
        return cleaned

    @classmethod
    def from_dict(cls, raw: Mapping[str, Any], path: Path | None = None) -> Record:
        """The record in ``raw``, which ``upgrade`` brought to this version; ``UserError`` names what is wrong."""
        values = dict(raw)
        check(values, cls)
        check(values["config"], Config, "config")
        if values["status"] not in STATUSES:
            raise UserError(f"record: status {shown(values['status'])} is unknown (known: {', '.join(STATUSES)})")
        values["key"] = CellKey(**{part.name: values["key"][part.name] for part in dataclasses.fields(CellKey)})
        for name, file in values["artifacts"].items():
            own = values["key"].file(name).name
            if not re.fullmatch(re.escape(own) + r"(-[0-9a-f]{8})?\.parquet", file):
                raise UserError(f"record: artifacts.{name} should be its own table beside it, is {shown(file)}")
        if unknown := sorted(values.keys() - set(stored_fields(cls))):
            raise UserError(f"record: {unknown[0]} is no field of a version {SCHEMA_VERSION} record")
        return cls(**values, path=path)


def variant_name(model: str, differences: Mapping[str, Any], position: str | None) -> str:
    """A model and what differs from its file: ``performer · features=64 · rope``."""
    short = [option.rsplit(".", 1)[-1] for option in differences]
    parts = [
        f"{tail if short.count(tail) == 1 else option}={_spell(value)}"
        for (option, value), tail in zip(differences.items(), short, strict=True)
    ]
    return " · ".join([model, *parts, *filter(None, [position])])


def _spell(value: Any) -> str:
    if isinstance(value, bool) or value is None:
        return str(value).lower()
    if isinstance(value, float):
        return f"{value:g}"
    if isinstance(value, list | tuple):
        return "[" + ",".join(_spell(entry) for entry in value) + "]"
    return str(value)
