"""Hashes of cells and fingerprints of tasks equal those stored in ``stored_identity.json`` next to this file.

Records are found by these values, so refactoring must not change them. After an intended change (an option, a default
or a revision) run ``python -m tests.project.test_stored_identity`` to store the new values, and mention it in the
changelog.
"""

import json
import os
from pathlib import Path
from typing import Any

import pytest
from hydra.utils import get_class

from lra_bench.config.hashing import config_hash
from lra_bench.config.objects import build_task
from lra_bench.config.serialization import from_dict
from lra_bench.contracts import UserError
from lra_bench.grid.plan import plan
from lra_bench.records.reference import load_reference
from lra_bench.records.store import load_all

ROOT = Path(__file__).parents[2]
STORED = Path(__file__).with_name("stored_identity.json")
CELLS: dict[str, dict[str, str]] = json.loads(STORED.read_text()) if STORED.exists() else {}
BOARD = ROOT / "results" / "reference" / "board2026"


def names(group: str) -> list[str]:
    return sorted(path.stem for path in (ROOT / "conf" / group).glob("*.yaml"))


def choices() -> list[str]:
    """Return every model on one task, every task under every protocol, and every position, as overrides.

    Stored choices are kept. The tasks retrieval, csv and hub are left out, because they need files.
    """
    tasks = [task for task in names("task") if task not in ("retrieval", "csv", "hub")]
    stored = {option for choice in CELLS for option in choice.split()}
    added = [name for name in names("model") if f"model={name}" not in stored]
    chosen = [*CELLS, *(f"task={tasks[n % len(tasks)]} model={model} protocol=quick" for n, model in enumerate(added))]
    protocols = [name for name in names("protocol") if name != "published"]
    chosen += [f"task={task} model=transformer protocol={name}" for task in tasks for name in protocols]
    chosen += [f"task=listops model=transformer protocol=quick position={name}" for name in names("position")]
    chosen += [f"task={task} model=transformer protocol=published" for task in ("listops", "text", "image")]
    return list(dict.fromkeys(chosen))


def identity(choice: str, results: Path) -> dict[str, str] | None:
    """Return hash and fingerprint of the cell with the overrides ``choice``, or None if it is refused."""
    try:
        (planned,) = plan(choice.split(), results)
    except UserError:
        return None
    return {"hash": planned.cell.key.hash, "fingerprint": planned.cell.fingerprint}


FAST = [choice for choice in CELLS if "model=transformer" in choice and "protocol=quick" in choice]


@pytest.fixture(autouse=True)
def no_files(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """Unset the folder of raw data, because the fingerprint of a task depends on the files that it reads."""
    monkeypatch.delenv("LRA_BENCH_DATA", raising=False)
    monkeypatch.setenv("LRA_BENCH_CACHE", str(tmp_path / "cache"))


@pytest.mark.one_in(4)
@pytest.mark.parametrize("choice", FAST)
def test_hash_and_fingerprint_equal_the_stored_ones(choice: str, tmp_path: Path) -> None:
    assert identity(choice, tmp_path) == CELLS[choice]


@pytest.mark.slow
def test_hash_and_fingerprint_equal_the_stored_ones_for_every_model_and_protocol(tmp_path: Path) -> None:
    assert {choice: identity(choice, tmp_path) for choice in CELLS} == CELLS


def test_committed_records_load_and_build_a_task_with_their_fingerprint() -> None:
    records = [record for record in load_all(BOARD) if record.status != "incompatible"]  # those read no data
    assert len(records) > 100
    for record in records:
        config = from_dict(record.config)
        fingerprint = build_task(config).fingerprint()
        assert record.data is not None and record.data["fingerprint"] == fingerprint
        assert record.key.hash == config_hash(config, fingerprint), record.path


def targets(node: Any) -> set[str]:
    """Return every ``_target_`` in a configuration."""
    if isinstance(node, dict):
        found = {node["_target_"]} if node.get("_target_") else set()
        return found.union(*(targets(value) for value in node.values()))
    return set().union(*map(targets, node)) if isinstance(node, list) else set()


def test_every_class_named_in_a_committed_record_can_be_imported() -> None:
    named = set().union(*(targets(record.config) for record in load_reference(ROOT / "results" / "reference")))
    assert len(named) > 50
    for target in sorted(named):
        assert isinstance(get_class(target), type), target


def write() -> None:
    """Store the current hashes and fingerprints."""
    os.environ.pop("LRA_BENCH_DATA", None)  # as in no_files
    found = {choice: each for choice in choices() if (each := identity(choice, Path("/nonexistent")))}
    STORED.write_text(json.dumps(found, indent=1, sort_keys=True) + "\n")
    print(f"{len(found)} of {len(choices())} cells in {STORED}")


if __name__ == "__main__":
    write()
