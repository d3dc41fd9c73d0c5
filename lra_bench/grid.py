"""From overrides to cells, the status of each, and each run in a fresh process."""

from __future__ import annotations

import itertools
import json
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from lra_bench import config as configuration
from lra_bench.abilities import mixer_ability
from lra_bench.attempt import attempt, record_incompatible
from lra_bench.build import build_task
from lra_bench.cell import Cell, exit_code, held_elsewhere
from lra_bench.contracts import TaskSpec, UserError
from lra_bench.hardware import check_batch, slug
from lra_bench.progress import bar, say
from lra_bench.records import store
from lra_bench.records.environment import code_version
from lra_bench.records.schema import FINISHED, RETRIED, CellKey, Record

RERUN = {"never": (), "failed": ("failed",), "stale": ("stale",), "all": ("done", "failed", "stale")}
"""Which cells ``--rerun`` measures again, by their status in the plan."""


@dataclass(frozen=True)
class Planned:
    """A cell with its status, the reason, and its record if any.

    The status is ``to run``, ``done``, ``failed``, ``stale`` or ``incompatible``.
    """

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
    if record is not None and record.status in RETRIED:
        return "failed", f"{record.status} ({record.reason}); --rerun failed tries it again", record
    if record is not None and record.status in FINISHED:
        measured, current = record.code["version"], code_version()["version"]
        again = "--rerun stale measures it again"
        if measured != current:
            return "stale", f"measured by lra-bench {measured}, this is {current}; {again}", record
        if record.data is not None and record.data["version"] != spec.version:
            return "stale", f"task version {record.data['version']}, now {spec.version}; {again}", record
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
    planned: Sequence[Planned], results: Path, rerun: str = "never"
) -> Iterator[tuple[Planned, Record | None, int]]:
    """Run the cells that want it, one after the other; yields each with its record and its exit code.

    ``rerun`` is one of ``RERUN``. Cells that another process measures just now come last. A cell whose input is wrong
    yields code 2 and no record; the others go on. Ctrl-C ends the iteration after the running cell has written its
    checkpoint.
    """
    store.check_writable(results)
    for number, each in enumerate(_free_first(planned, results), start=1):
        if each.status == "incompatible":
            yield each, record_incompatible(each.cell, each.record, results, each.reason), 0
            continue
        if each.status != "to run" and each.status not in RERUN[rerun]:
            yield each, each.record, exit_code(each.record.status) if each.record else 0
            continue
        if len(planned) > 1:
            say(f"[{number}/{len(planned)}] {each.cell.key}")
        anew = each.status != "to run" and rerun != "failed"
        record, code = attempt(each.cell, each.record, results, anew)
        yield each, record, code
        if code == 130:
            raise KeyboardInterrupt


def _free_first(planned: Sequence[Planned], results: Path) -> Iterator[Planned]:
    busy = []
    for each in planned:
        if each.status == "to run" and held_elsewhere(each.cell.key, results):
            busy.append(each)
        else:
            yield each
    yield from busy


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
