"""From overrides to cells, each with its status."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from lra_bench import config as configuration
from lra_bench.build import build_task
from lra_bench.cell import Cell
from lra_bench.hardware import check_batch, slug
from lra_bench.import_path import importable
from lra_bench.progress import bar
from lra_bench.records.schema import CellKey, Record

from .expand import expand
from .status import status_of


@dataclass(frozen=True)
class Planned:
    """A cell with its status (``to run``, ``done``, ``stale``, ``incompatible``), the reason, and its record if any."""

    cell: Cell
    status: str
    reason: str
    record: Record | None


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
    return Planned(cell, *status_of(cell, task.spec, results))
