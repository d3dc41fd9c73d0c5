"""Decide whether a cell must run."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from lra_bench.cells.cell import Cell
from lra_bench.config.capabilities import mixer_capability
from lra_bench.config.schema import CellConfig
from lra_bench.config.serialization import as_dict
from lra_bench.contracts import TaskSpec
from lra_bench.records import store
from lra_bench.records.environment import host, host_name, package_version, same_host
from lra_bench.records.key import CellKey
from lra_bench.records.schema import FINISHED, RETRIED, Record

RERUN = {"never": (), "failed": ("failed",), "stale": ("stale",), "all": ("done", "failed", "stale")}
"""Which cells ``--rerun`` measures again, by their status in the plan."""
UNRESOLVED = "elsewhere"
"""The hardware of a cell that another machine is to run: which one, is known there."""
PLACE = {
    "launcher": ("name", "partition", "cpus", "gpus"),
    "hardware": ("device", "precision", "compile", "strategy", "processes"),
}
"""The options that say on what machine a submitted cell runs, and how."""


@dataclass(frozen=True)
class Planned:
    """A cell with its status (``to run``, ``done``, ``stale``, ``incompatible``), the reason, and its record if any."""

    cell: Cell
    status: str
    reason: str
    record: Record | None

    @property
    def attempt(self) -> int:
        """Which attempt at the cell the next one is, from 1 on."""
        return self.record.attempt + 1 if self.record else 1

    def restarts(self, rerun: str) -> bool:
        """Whether it takes up no checkpoint: where ``--rerun`` asks for it, unless it failed and is to go on."""
        return self.status != "to run" and rerun != "failed"


def record_of(cell: Cell, results: Path) -> Record | None:
    """The cell's record under ``results``; of a submitted cell one that was asked for by the same words."""
    if cell.key.hardware != UNRESOLVED:
        return store.find(cell.key, results)
    return record_at(cell.key, place_of(as_dict(cell.config)), results)


def record_at(key: CellKey, place: Sequence[Any], results: Path) -> Record | None:
    """The best record of a cell, on whatever machine, that asked for its machine by the words of ``place``."""
    pattern = f"{key.task}/{key.model}/*/{key.protocol}-{key.hash}/seed{key.seed}.json"
    found = [store.load(path) for path in sorted((results / store.RUNS).glob(pattern))]
    same = [record for record in found if place_of(record.config) == list(place)]
    return max(same, key=store.precedence, default=None)


def place_of(config: Mapping[str, Any]) -> list[Any]:
    """By which words a submitted cell asks for its machine, of its configuration as a record holds it."""
    return [config.get(section, {}).get(name) for section, names in PLACE.items() for name in names]


def status_of(cell: Cell, spec: TaskSpec, record: Record | None) -> tuple[str, str]:
    """Status and reason of a cell, given its record if it has one.

    Only a record that was measured on this machine counts; another machine with the same short name may have left one
    here.
    """
    if record is not None and cell.key.hardware != UNRESOLVED and not measured_here(record):
        machine = host_name(record.environment["hardware"])
        return "to run", f"the record here is of another machine ({machine}); it is kept under another name"
    if record is not None and record.status in RETRIED:
        return "failed", f"{record.status} ({record.reason}); --rerun failed tries it again"
    if record is not None and record.status in FINISHED:
        again = "--rerun stale measures it again"
        when = record.finished_at[:16].replace("T", " ")
        measured, current = record.code["version"], package_version()
        if measured != current:
            return "stale", f"measured by lra-bench {measured}, this is {current}; {again}"
        if record.data is not None and record.data["version"] != spec.version:
            return "stale", f"task version {record.data['version']}, now {spec.version}; {again}"
        return "done", f"measured here on {when} UTC ({record.status}); --rerun all measures it again"
    if refused := incompatible(cell.config, spec):
        return "incompatible", refused
    if record is not None:
        return "to run", f"{record.status} before; continues from its checkpoint"
    return "to run", ""


def measured_here(record: Record) -> bool:
    """Whether a record was measured on a machine like this one."""
    return same_host(record.environment["hardware"], host())


def incompatible(config: CellConfig, spec: TaskSpec) -> str | None:
    """Why model and task do not go together, as far as the mixer's declared capabilities tell."""
    node = config.model.get("mixer")
    if not node:
        return None
    capability = mixer_capability(str(node.get("_target_")))
    return capability.refuses_direction(spec, config.backbone.causal, str(node["_target_"]).rpartition(".")[2])
