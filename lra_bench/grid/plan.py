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
from lra_bench.contracts import TaskSpec, Unwritable, UserError
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
                task = cache.task(each.config)
                # Without data the hash in the key is unknown, and cells are compared by the hash without the data.
                identity = cell.key, config_hash(cell.config, "") if task.missing else ""
                if identity in planned:
                    _check_measured_once(planned[identity].cell, cell)
                elif task.missing:
                    planned[identity] = Planned(cell, NO_DATA, task.missing, None)
                elif refusal := cache.refusal(each):
                    planned[identity] = Planned(cell, REFUSED, refusal, None)
                else:
                    planned[identity] = examined(cell, task.spec, results)
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


CHECKED = (
    *("model.", "position=", "position.", "backbone.", "pretrain=", "pretrain."),
    *("train.length_warmup=", "train.order=", "train.window="),
)
"""Prefixes of the overrides that are checked by building the task and the model."""


class PlanCache:
    """Cache of task specifications, data fingerprints and refused options of planned cells."""

    def __init__(self) -> None:
        self._tasks: dict[str, PlannedTask] = {}
        self._refusals: dict[str, str] = {}

    def task(self, config: CellConfig) -> PlannedTask:
        """Return what a plan needs of the task. Raises ``Unwritable`` if the cache cannot be written."""
        name = json.dumps(config.task, sort_keys=True)
        if name not in self._tasks:
            task = build_task(config)
            try:
                self._tasks[name] = PlannedTask(task.spec, fingerprint=task.fingerprint())
            except Unwritable:
                raise
            except UserError as error:
                self._tasks[name] = PlannedTask(task.spec, missing=str(error))
        return self._tasks[name]

    def refusal(self, composed: configuration.Composed) -> str:
        """Return why model, pretraining or length warm-up do not support the options of a cell, empty if they do.

        The model is built without memory for its parameters. Errors other than ``UserError`` are left to the cell.
        """
        if not any(text.lstrip("+").startswith(CHECKED) for text in composed.overrides):
            return ""
        config = composed.config
        train = config.train
        parts = [
            *(config.task, config.model, config.position, asdict(config.backbone), asdict(config.pretrain)),
            *(train.length_warmup, train.order, train.window),
        ]
        name = json.dumps(parts, sort_keys=True)
        if name not in self._refusals:
            self._refusals[name] = _refusal(config)
        return self._refusals[name]


def _refusal(config: CellConfig) -> str:
    import torch

    from lra_bench.config.objects import build_model, build_pretraining
    from lra_bench.training.sampling import check_warmup

    task = build_task(config)
    try:
        check_warmup(task, config.train)
        check_options(config, task.spec)
        with torch.device("meta"):
            network = build_model(config, task.spec)
            if has_objective(config):
                build_pretraining(config, network, task.spec)
    except UserError as error:
        return str(error)
    except Exception:  # also of constructors that need actual numbers; the process of the cell reports the others
        pass
    return ""


@dataclass(frozen=True)
class PlannedTask:
    """What a plan needs of a task. Either ``fingerprint`` or ``missing``, the error message, is empty."""

    spec: TaskSpec
    fingerprint: str = ""
    missing: str = ""


def _cell(composed: configuration.Composed, cache: PlanCache, config_dir: Path | None, here: bool) -> Cell:
    """Check a composed configuration and return its cell, with its key."""
    config, hardware = composed.config, UNRESOLVED
    before_planning(config, composed.overrides, composed.modified, composed.missing)
    launcher = build_launcher(config.launcher)
    if here or isinstance(launcher, Local):
        check_machine(config)
        config = launcher.adapted(config)
        hardware = slug(config.hardware)
    task = cache.task(config)
    key = CellKey(
        task=composed.choices["task"],
        model=composed.choices["model"],
        hardware=hardware,
        protocol=protocol_label(config),
        hash=UNKNOWN_HASH if task.missing else config_hash(config, task.fingerprint),
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
        fingerprint=task.fingerprint,
        config_dir=str(config_dir.resolve()) if config_dir else None,
        sources=source_texts(named),
    )
