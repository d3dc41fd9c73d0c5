"""What is to become of a cell: run it, or say why not."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from lra_bench.abilities import mixer_ability
from lra_bench.cell import Cell
from lra_bench.contracts import TaskSpec
from lra_bench.records import store
from lra_bench.records.environment import package_version
from lra_bench.records.schema import FINISHED, Record


def status_of(cell: Cell, spec: TaskSpec, results: Path) -> tuple[str, str, Record | None]:
    """Status and reason of a cell against what lies under ``results``, and its record if any."""
    record = store.find(cell.key, results)
    if record is not None and record.status in FINISHED:
        measured, current = record.code["version"], package_version()
        if measured != current:
            return "stale", f"measured by lra-bench {measured}, this is {current}; --rerun measures it again", record
        if record.data is not None and record.data["version"] != spec.version:
            reason = f"task version {record.data['version']}, now {spec.version}; --rerun measures it again"
            return "stale", reason, record
        return "done", f"{record.status} on {record.finished_at[:10]}", record
    if refused := incompatible(cell.config, spec):
        return "incompatible", refused, record
    if record is not None:
        return "to run", f"{record.status} before; continues from its checkpoint", record
    return "to run", "", None


def incompatible(config: dict[str, Any], spec: TaskSpec) -> str | None:
    """Why model and task do not go together, as far as the mixer's declared abilities tell."""
    node = config["model"].get("mixer")
    if not node:
        return None
    ability = mixer_ability(str(node.get("_target_")))
    return ability.refuses_direction(spec, config["backbone"]["causal"], str(node["_target_"]).rpartition(".")[2])
