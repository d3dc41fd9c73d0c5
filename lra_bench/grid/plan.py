"""Plan cells: compose each cell that the overrides name and determine its status."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path

from lra_bench.cells.cell import Cell
from lra_bench.config import compose as configuration
from lra_bench.config.compose_many import composed
from lra_bench.config.hashing import config_hash
from lra_bench.config.import_path import importable
from lra_bench.config.objects import build_task
from lra_bench.config.schema import CellConfig
from lra_bench.contracts import TaskSpec
from lra_bench.progress import bar
from lra_bench.records.key import CellKey
from lra_bench.runtime.hardware import check_batch, slug

from .expand import expand
from .resources import check_launcher, with_own_threads
from .status import UNRESOLVED, Planned, record_of, status_of


def plan(
    overrides: Sequence[str],
    results: Path,
    config_dir: Path | None = None,
    arrived: bool = False,
    cache: PlanCache | None = None,
) -> list[Planned]:
    """Compose the cells that the overrides name and determine their status.

    Args:
        overrides: Overrides of the command line, which may contain lists of values and grids.
        results: The results folder, in which records of the cells are looked up.
        config_dir: Folder of additional configuration and classes.
        arrived: Whether this process is the job of a submitted cell. Only then does the key of a submitted cell
            contain its hardware.
        cache: Cache of tasks. Calls that share a cache build each task once.

    Returns:
        The cells without duplicates, each with its status and its record.
    """
    planned: dict[CellKey, Planned] = {}
    with importable(config_dir), configuration.hydra_context():
        cells = expand(overrides, config_dir)
        cache = cache or PlanCache()
        with bar(len(cells), "Planning", unit="cells") as advance:
            for each in composed(cells, config_dir):
                cell = _cell(each, cache, config_dir, arrived)
                if cell.key not in planned:
                    record = record_of(cell, results)
                    planned[cell.key] = Planned(cell, *status_of(cell, cache.task(each.config)[0], record), record)
                advance(1)
    return list(planned.values())


class PlanCache:
    """Cache of task specifications, data fingerprints and hardware names of planned cells."""

    def __init__(self) -> None:
        self._tasks: dict[str, tuple[TaskSpec, str]] = {}
        self._slugs: dict[str, str] = {}

    def task(self, config: CellConfig) -> tuple[TaskSpec, str]:
        """Return the specification of the task and the fingerprint of its data."""
        name = json.dumps(config.task, sort_keys=True)
        if name not in self._tasks:
            task = build_task(config)
            self._tasks[name] = task.spec, task.fingerprint()
        return self._tasks[name]

    def slug(self, config: CellConfig) -> str:
        """Return the short name of the hardware."""
        name = json.dumps(asdict(config.hardware))
        if name not in self._slugs:
            self._slugs[name] = slug(config.hardware)
        return self._slugs[name]


def _cell(composed: configuration.Composed, cache: PlanCache, config_dir: Path | None, arrived: bool) -> Cell:
    """Check a composed configuration and return its cell, with its key."""
    config, hardware = composed.config, UNRESOLVED
    check_launcher(config.launcher)
    configuration.check_required_files(composed, config_dir)
    if arrived or config.launcher.name != "slurm":
        config = with_own_threads(config)
        check_batch(config.hardware, config.train.batch_size, config.backbone.norm)
        hardware = cache.slug(config)
    _, fingerprint = cache.task(config)
    key = CellKey(
        task=composed.choices["task"],
        model=composed.choices["model"],
        hardware=hardware,
        protocol=config.protocol.label,
        hash=config_hash(config, fingerprint),
        seed=config.seed,
    )
    chosen = [text.partition("=")[2] for text in composed.overrides if text.startswith("position=")]
    return Cell(
        key=key,
        config=config,
        overrides=composed.overrides,
        differences=composed.differences,
        modified=composed.modified,
        position=chosen[-1] if chosen and chosen[-1] != "auto" else None,
        fingerprint=fingerprint,
        config_dir=str(config_dir.resolve()) if config_dir else None,
    )
