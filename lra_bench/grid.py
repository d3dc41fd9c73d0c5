"""From overrides to cells, the status of each, and each run in a fresh process."""

from __future__ import annotations

import itertools
import json
import subprocess
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from lra_bench import config as configuration
from lra_bench.abilities import mixer_ability
from lra_bench.build import build_task
from lra_bench.cell import Cell
from lra_bench.child import death, environment
from lra_bench.contracts import TaskSpec, UserError
from lra_bench.hardware import check_batch, slug
from lra_bench.progress import bar, say
from lra_bench.records import store
from lra_bench.records.environment import code_version
from lra_bench.records.schema import FINISHED, CellKey, Record


@dataclass(frozen=True)
class Planned:
    """A cell with its status (``to run``, ``done``, ``stale``, ``incompatible``), the reason, and its record if any."""

    cell: Cell
    status: str
    reason: str
    record: Record | None


def expand(overrides: Sequence[str], config_dir: Path | None = None) -> list[list[str]]:
    """Overrides with comma lists, ranges and ``model=ALL`` as one list of single values per cell."""
    from hydra.core.override_parser.overrides_parser import OverridesParser
    from hydra.errors import HydraException

    choices: list[list[str]] = []
    parser = OverridesParser.create()
    for text in overrides:
        key, _, value = text.partition("=")
        if value == "ALL" and key in configuration.GROUPS:
            choices.append([f"{key}={name}" for name in configuration.option_files(key, config_dir)])
            continue
        if key == "task.source":
            choices.append([f"task.source={json.dumps(value)}" if value[:1] not in "'\"" else text])
            continue
        try:
            parsed = parser.parse_override(text)
        except HydraException as error:
            raise UserError(f"{text}: cannot be read as key=value ({str(error).splitlines()[0]})") from error
        if parsed.is_sweep_override():
            choices.append([f"{key}={each}" for each in parsed.sweep_string_iterator()])
        else:
            choices.append([text])
    return [list(cell) for cell in itertools.product(*choices)]


def plan(overrides: Sequence[str], results: Path, config_dir: Path | None = None) -> list[Planned]:
    """Every cell that the overrides name, once, with its status against what lies under ``results``."""
    planned: dict[CellKey, Planned] = {}
    with importable(config_dir), configuration.hydra_ready():
        cells = expand(overrides, config_dir)
        with bar(len(cells), "Planning", unit="cells") as advance:
            for single in cells:
                each = _plan(single, results, config_dir)
                planned.setdefault(each.cell.key, each)
                advance(1)
    return list(planned.values())


def _plan(overrides: Sequence[str], results: Path, config_dir: Path | None) -> Planned:
    composed = configuration.compose(overrides, config_dir)
    task = build_task(composed.config)
    check_batch(composed.config["hardware"], composed.config["train"]["batch_size"])
    fingerprint = task.fingerprint()
    key = CellKey(
        task=composed.choices["task"],
        model=composed.choices["model"],
        hardware=slug(composed.config["hardware"]),
        protocol=composed.config["protocol"]["name"],
        hash=configuration.config_hash(composed.config, fingerprint),
        seed=composed.config["seed"],
    )
    chosen = [text.partition("=")[2] for text in overrides if text.startswith("position=")]
    cell = Cell(
        key=key,
        config=composed.config,
        overrides=tuple(overrides),
        differences=composed.differences,
        modified=composed.modified,
        position=chosen[-1] if chosen and chosen[-1] != "auto" else None,
        fingerprint=fingerprint,
        config_dir=str(config_dir.resolve()) if config_dir else None,
    )
    return Planned(cell, *_status(cell, task.spec, results))


def _status(cell: Cell, spec: TaskSpec, results: Path) -> tuple[str, str, Record | None]:
    record = store.find(cell.key, results)
    if record is not None and record.status in FINISHED:
        measured, current = record.code["version"], code_version()["version"]
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


def execute(
    planned: Sequence[Planned], results: Path, rerun: bool = False
) -> Iterator[tuple[Planned, Record | None, int]]:
    """Run the cells that want it, one after the other; yields each with its record and its exit code.

    A cell whose input is wrong yields code 2 and no record; the others go on. Ctrl-C ends the iteration
    after the running cell has written its checkpoint.
    """
    store.check_writable(results)
    for number, each in enumerate(planned, start=1):
        if each.status == "incompatible":
            yield each, _record_unrun(each, results, "incompatible", each.reason), 0
            continue
        if each.status != "to run" and not (rerun and each.status in ("done", "stale")):
            yield each, each.record, 0
            continue
        if len(planned) > 1:
            say(f"[{number}/{len(planned)}] {each.cell.key}")
        if rerun:
            _forget_checkpoint(each.cell)
        code = _run_in_fresh_process(each, results)
        record = store.find(each.cell.key, results) if code != 2 else None
        if code not in (0, 1, 2, 130):
            record, code = _record_unrun(each, results, "failed", f"the process of the cell {death(code)}"), 1
        yield each, record, code
        if code == 130:
            raise KeyboardInterrupt


def _run_in_fresh_process(planned: Planned, results: Path) -> int:
    """Run one cell in a process of its own, with the user's folder on its import path; its exit code."""
    cell = planned.cell
    request = {
        "cell": cell.as_json(),
        "results": str(results),
        "attempt": planned.record.attempt + 1 if planned.record else 1,
    }
    process = subprocess.Popen(
        [sys.executable, "-m", "lra_bench.cell"],
        stdin=subprocess.PIPE,
        env=environment(cell.config_dir),
        text=True,
    )
    try:
        assert process.stdin is not None
        process.stdin.write(json.dumps(request))
        process.stdin.close()
        return process.wait()
    except KeyboardInterrupt:
        # The terminal has told the child as well; it ends at its next step, after its checkpoint.
        process.wait()
        return 130
    except BrokenPipeError:
        return process.wait()


def _record_unrun(planned: Planned, results: Path, status: str, reason: str) -> Record:
    """Record a cell that could not speak for itself; the record that stands."""
    from lra_bench.cell import blank_record
    from lra_bench.records.environment import environment as examine

    record = blank_record(planned.cell, planned.record.attempt + 1 if planned.record else 1, examine(None))
    record.status, record.reason = status, reason
    return store.keep_best(record, results)


def _forget_checkpoint(cell: Cell) -> None:
    import shutil

    from lra_bench.cell import checkpoint_folder

    shutil.rmtree(checkpoint_folder(cell.key), ignore_errors=True)


@contextmanager
def importable(folder: Path | None) -> Iterator[None]:
    """The user's folder on the import path while cells are composed."""
    if folder is None:
        yield
        return
    if not folder.is_dir():
        raise UserError(f"--config-dir {folder}: there is no such folder")
    sys.path.insert(0, str(folder.resolve()))
    try:
        yield
    finally:
        sys.path.remove(str(folder.resolve()))
