"""Plan cells: compose each cell that the overrides name and determine its status."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path

from lra_bench.cells.cell import Cell
from lra_bench.config import compose as configuration
from lra_bench.config.compose import Loader
from lra_bench.config.effective import effective
from lra_bench.config.hashing import config_hash
from lra_bench.config.import_path import importable
from lra_bench.config.objects import build_launcher, build_task
from lra_bench.config.pretraining import check_options, has_objective
from lra_bench.config.schema import CellConfig
from lra_bench.config.search import protocol_label
from lra_bench.config.serialization import measured
from lra_bench.config.sources import edited_modules, source_texts
from lra_bench.config.validation import before_planning, check_machine
from lra_bench.contracts import Task, TaskSpec, Unwritable, UserError
from lra_bench.progress import bar
from lra_bench.records.key import CellKey
from lra_bench.records.schema import EDITED
from lra_bench.runtime.hardware import slug

from .expand import expand
from .local import Local
from .status import NO_DATA, NOT_RUN, REFUSED, UNKNOWN_HASH, UNRESOLVED, Planned, examined


def plan(
    overrides: Sequence[str],
    results: Path,
    config_dir: Path | None = None,
    here: bool = False,
    cache: PlanCache | None = None,
) -> list[Planned]:
    """Compose the cells that the overrides name and determine their status.

    A record that cannot be read gives its cell the status ``UNREADABLE``.

    Args:
        overrides: Overrides of the command line, which may contain lists of values and grids.
        results: The results folder, in which records of the cells are looked up.
        config_dir: Folder of additional configuration and classes.
        here: Whether this machine runs the cells, whichever launcher they name. Otherwise only cells of the launcher
            ``local`` have keys with their hardware.
        cache: Cache of tasks. Calls that share a cache build each task once.

    Returns:
        The cells without duplicates, each with its status and its record.

    Raises:
        UserError: If an override is wrong, or if no cell can run for the same reason: its data is missing, its record
            cannot be read, or its model refuses an option. Otherwise such cells have a status of ``NOT_RUN``.
    """
    planned: dict[tuple[CellKey, str], Planned] = {}
    with importable(config_dir):
        cells = expand(overrides, config_dir)
        cache = cache or PlanCache()
        load = Loader(config_dir)
        with bar(len(cells), "Planning", unit="cells") as advance:
            for each in (configuration.compose(cell, config_dir, load) for cell in cells):
                cell = _cell(each, cache, config_dir, here)
                missing = cache.missing_data(each.config)
                # Without data the hash in the key is unknown, and cells are compared by the hash without the data.
                identity = cell.key, config_hash(cell.config, "") if missing else ""
                if identity in planned:
                    _check_measured_once(planned[identity].cell, cell)
                elif missing:
                    planned[identity] = Planned(cell, NO_DATA, missing, None)
                elif refusal := cache.refusal(each):
                    planned[identity] = Planned(cell, REFUSED, refusal, None)
                else:
                    planned[identity] = examined(cell, cache.spec(each.config), results)
                advance(1)
    found = list(planned.values())
    if found and all(each.status in NOT_RUN for each in found) and len({each.reason for each in found}) == 1:
        raise UserError(found[0].reason)
    return found


def _check_measured_once(first: Cell, second: Cell) -> None:
    """Raise ``UserError`` if two cells with the same key differ in what is measured."""
    if first.config.measure != second.config.measure:
        different = sorted({*first.overrides} ^ {*second.overrides})
        raise UserError(
            f"{' and '.join(different)}: are measurements of the same cell, {second.key}; give the option one value, "
            "or run them with separate --results"
        )


CHECKED = ("model.", "position=", "position.", "backbone.", "pretrain=", "pretrain.")
"""Beginnings of the overrides with which a class may refuse an option."""


class PlanCache:
    """Cache of task specifications, data fingerprints, refused options and hardware names of planned cells."""

    def __init__(self) -> None:
        self._tasks: dict[str, _PlannedTask] = {}
        self._slugs: dict[str, str] = {}
        self._refusals: dict[str, str] = {}

    def spec(self, config: CellConfig) -> TaskSpec:
        """Return the specification of the task."""
        return self._task(config).spec

    def fingerprint(self, config: CellConfig) -> str:
        """Return the fingerprint of the data of the task, empty if the data is missing."""
        return self._task(config).fingerprint

    def missing_data(self, config: CellConfig) -> str:
        """Return the error message about missing data of the task, empty if the fingerprint is known."""
        return self._task(config).missing

    def _task(self, config: CellConfig) -> _PlannedTask:
        name = json.dumps(config.task, sort_keys=True)
        if name not in self._tasks:
            self._tasks[name] = _examined(build_task(config))
        return self._tasks[name]

    def refusal(self, composed: configuration.Composed) -> str:
        """Return why an option of model, position, backbone or pretraining is refused; empty if none is.

        The model is built without memory for its parameters. Errors other than ``UserError`` are left to the cell.
        """
        if not any(text.lstrip("+").startswith(CHECKED) for text in composed.overrides):
            return ""
        config = composed.config
        parts = [config.model, config.position, asdict(config.backbone), asdict(config.pretrain)]
        name = json.dumps([*parts, self.spec(config).name], sort_keys=True)
        if name not in self._refusals:
            self._refusals[name] = _refusal(config, self.spec(config))
        return self._refusals[name]

    def slug(self, config: CellConfig) -> str:
        """Return the short name of the hardware."""
        name = json.dumps(asdict(config.hardware))
        if name not in self._slugs:
            self._slugs[name] = slug(config.hardware)
        return self._slugs[name]


def _refusal(config: CellConfig, spec: TaskSpec) -> str:
    import torch

    from lra_bench.config.objects import build_model, build_pretraining

    try:
        check_options(config, spec)
        with torch.device("meta"):
            network = build_model(config, spec)
            if has_objective(config):
                build_pretraining(config, network, spec)
    except UserError as error:
        return str(error)
    except Exception:  # also of constructors that need actual numbers; the process of the cell reports the others
        pass
    return ""


@dataclass(frozen=True)
class _PlannedTask:
    """What a plan needs of a task. Either ``fingerprint`` or ``missing``, the error message, is empty."""

    spec: TaskSpec
    fingerprint: str = ""
    missing: str = ""


def _examined(task: Task) -> _PlannedTask:
    """Return specification and fingerprint of a task, or the message of the error that its data cannot be read.

    Raises ``Unwritable`` if the cache cannot be written.
    """
    try:
        return _PlannedTask(task.spec, fingerprint=task.fingerprint())
    except Unwritable:
        raise
    except UserError as error:
        return _PlannedTask(task.spec, missing=str(error))


def _cell(composed: configuration.Composed, cache: PlanCache, config_dir: Path | None, here: bool) -> Cell:
    """Check a composed configuration and return its cell, with its key."""
    config, hardware = composed.config, UNRESOLVED
    before_planning(config, composed.overrides, composed.modified, composed.missing)
    launcher = build_launcher(config.launcher)
    if here or isinstance(launcher, Local):
        check_machine(config)
        config = launcher.adapted(config)
        hardware = cache.slug(config)
    fingerprint = cache.fingerprint(config)
    key = CellKey(
        task=composed.choices["task"],
        model=composed.choices["model"],
        hardware=hardware,
        protocol=protocol_label(config),
        hash=UNKNOWN_HASH if cache.missing_data(config) else config_hash(config, fingerprint),
        seed=config.seed,
    )
    named = effective(measured(config), "")
    edited = {EDITED: True} if edited_modules(named) else {}
    chosen = [text.partition("=")[2] for text in composed.overrides if text.startswith("position=")]
    return Cell(
        key=key,
        config=config,
        overrides=composed.overrides,
        differences=composed.differences | edited,
        modified=composed.modified,
        position=chosen[-1] if chosen and chosen[-1] != "auto" else None,
        fingerprint=fingerprint,
        config_dir=str(config_dir.resolve()) if config_dir else None,
        sources=source_texts(named),
    )
