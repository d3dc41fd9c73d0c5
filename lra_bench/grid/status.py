"""Decide whether a cell must run."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from lra_bench.cells.cell import Cell
from lra_bench.config.effective import mixer_capability
from lra_bench.config.objects import build_launcher
from lra_bench.config.schema import CellConfig
from lra_bench.config.search import options_of
from lra_bench.config.validation import refuses_network
from lra_bench.contracts import TaskSpec, UserError
from lra_bench.records import store
from lra_bench.records.environment import host, host_name, package_version, same_host
from lra_bench.records.key import CellKey
from lra_bench.records.schema import FINISHED, RETRIED, Record

RERUN = {"never": (), "failed": ("failed",), "stale": ("stale",), "all": ("done", "failed", "stale")}
"""Values of ``--rerun``, each with the planned statuses that it measures again."""

NOT_RUN = NO_DATA, UNREADABLE, REFUSED = "no data", "unreadable", "refused"
"""Planned statuses of cells that cannot run: the task has no raw data on this machine, the stored record cannot be
read, or the model or position refuses an option."""
UNKNOWN_HASH = "unknown"
"""Hash in the key of a cell with the status ``NO_DATA``: the hash covers the data, so it cannot be computed."""

THREADS = re.compile(r"-\d+t(?=-|$)")
"""The number of threads in the short name of hardware."""

UNRESOLVED = "elsewhere"
"""Hardware in the key of a cell that may run on another machine, where its command determines it."""
HARDWARE = ("device", "precision", "compile", "strategy", "processes")
"""Options of ``hardware`` that determine how a submitted cell runs."""


@dataclass(frozen=True)
class Planned:
    """A cell with its status, the reason for it, and its record if there is one.

    ``status`` is ``to run``, ``done``, ``failed``, ``stale``, ``incompatible`` or one of ``NOT_RUN``. A cell without
    data has no hash, and therefore no record.
    """

    cell: Cell
    status: str
    reason: str
    record: Record | None

    @property
    def attempt(self) -> int:
        """Number of the next attempt at the cell, from 1."""
        return self.record.attempt + 1 if self.record else 1

    def restarts(self, rerun: str) -> bool:
        """Return whether the cell starts without its checkpoint.

        This is the case if ``--rerun`` measures it again, except ``--rerun failed``, which continues from the
        checkpoint.
        """
        return self.status != "to run" and rerun != "failed"


EndedCell = tuple[Planned, Record | None, int]
"""A cell that has ended, its record (None if its input was wrong), and its exit code, see ``CellProcess.outcome``."""


def check_rerun(rerun: str) -> None:
    """Raise ``UserError`` if ``rerun`` is not one of ``RERUN``."""
    if rerun not in RERUN:
        raise UserError(f"--rerun {rerun}: choose {', '.join(RERUN)}")


def must_run(planned: Planned, rerun: str) -> bool:
    """Return whether a cell must run, given the value of ``--rerun``."""
    return planned.status == "to run" or planned.status in RERUN[rerun]


def examined(cell: Cell, spec: TaskSpec, results: Path, note: str = "") -> Planned:
    """Return a cell with its record in ``results``, its status and the reason, which begins with ``note``."""
    try:
        record = record_of(cell, results)
    except UserError as error:
        return Planned(cell, UNREADABLE, f"{error}; make it readable, or move it away to measure the cell", None)
    status, reason = status_of(cell, spec, record)
    return Planned(cell, status, "; ".join(filter(None, (note, reason))), record)


def record_of(cell: Cell, results: Path) -> Record | None:
    """Return the cell's record in ``results``; if it may run elsewhere, one with the same ``place_of``."""
    if cell.key.hardware != UNRESOLVED:
        return store.find(cell.key, results)
    return record_at(cell.key, place_of(cell.config), results)


def record_at(key: CellKey, place: Mapping[str, Any], results: Path) -> Record | None:
    """Return the best record of a cell on any machine, among those whose ``place_of`` equals ``place``."""
    pattern = f"{key.task}/{key.model}/*/{key.protocol}-{key.hash}/seed{key.seed}.json"
    found = map(store.load, store.paths(results, pattern))
    return max((record for record in found if is_at(record, place)), key=store.precedence, default=None)


def other_threads(planned: Sequence[Planned], rerun: str, results: Path) -> str:
    """Return a note that some cells that must run have records with another number of threads; empty if none has."""
    repeated = 0
    for each in planned:
        key = each.cell.key
        task, model, _, folder, seed = key.file("json").parts
        same = store.paths(results, f"{task}/{model}/*/{folder}/{seed}") if must_run(each, rerun) else ()
        others = {path.parts[-3] for path in same} - {key.hardware}
        if other := next((name for name in others if THREADS.sub("", name) == THREADS.sub("", key.hardware)), None):
            repeated, hardware = repeated + 1, other
    if not repeated:
        return ""
    return (
        f"{repeated} of {len(planned)} cells have a record with another number of threads ({hardware}), which is not "
        "used; set hardware.threads to that number to use it"
    )


def place_of(config: CellConfig) -> dict[str, Any]:
    """Return the options that determine on what kind of machine a cell runs elsewhere, and how, with their values."""
    names = [f"launcher.{name}" for name in ("_target_", *build_launcher(config.launcher).place)]
    names += [f"hardware.{name}" for name in HARDWARE]
    return options_of(config, names)


def is_at(record: Record, place: Mapping[str, Any]) -> bool:
    """Return whether a record has the values ``place`` of ``place_of``."""
    return options_of(record.config, place) == place


def status_of(cell: Cell, spec: TaskSpec, record: Record | None) -> tuple[str, str]:
    """Return the status of a cell and the reason for it, given its record if it has one.

    A record counts only if it was measured on this machine. The results folder may contain a record of another
    machine with the same short name.
    """
    if record is not None and cell.key.hardware != UNRESOLVED and not measured_here(record):
        machine = host_name(record.environment["hardware"])
        return "to run", f"the existing record is of another machine ({machine}) and will be kept under its name"
    if record is not None and record.status in RETRIED:
        return "failed", f"{record.status} ({record.reason}); --rerun failed runs it again"
    if record is not None and record.status in FINISHED:
        again = "--rerun stale measures it again"
        when = record.finished_at[:16].replace("T", " ")
        measured, current = record.code["version"], package_version()
        if measured != current:
            return "stale", f"measured with lra-bench {measured}, this is {current}; {again}"
        if record.data is not None and record.data["version"] != spec.version:
            return "stale", f"task version {record.data['version']}, now {spec.version}; {again}"
        return "done", f"measured here on {when} UTC ({record.status}); --rerun all measures it again"
    if refused := incompatible(cell.config, spec):
        return "incompatible", refused
    if record is not None:
        return "to run", f"previous attempt: {record.status}; continues from its checkpoint"
    return "to run", ""


def measured_here(record: Record) -> bool:
    """Return whether a record was measured on a machine with the same description as this one."""
    return same_host(record.environment["hardware"], host())


def incompatible(config: CellConfig, spec: TaskSpec) -> str | None:
    """Return why the model does not support the task or its options according to declarations, or None if it does."""
    if not config.model.get("mixer"):
        return refuses_network(config)
    nodes = [config.model["mixer"], *filter(None, [config.backbone.hybrid.mixer])]
    reasons = (
        mixer_capability(node).refuses_direction(spec, config.backbone.causal, str(node["_target_"]).rpartition(".")[2])
        for node in nodes
    )
    return next(filter(None, reasons), None)
