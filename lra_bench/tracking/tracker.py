"""What follows a run, and the choice of who does."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from lra_bench.contracts import UserError
from lra_bench.records.schema import CellKey, Record

if TYPE_CHECKING:
    import pandas as pd


class Tracker:
    """Follows a run: ``start``, ``log`` at every evaluation, ``finish`` with the record. This one does nothing."""

    def start(self, config: Mapping[str, Any], key: CellKey, folder: Path) -> None:
        """Begin following the cell ``key``; files go under ``folder``/wandb."""

    def log(self, step: int, values: Mapping[str, float]) -> None:
        """Show figures of a step while the run goes on."""

    def finish(self, record: Record, curves: pd.DataFrame | None = None) -> None:
        """Mirror the record, its curves and figures, and end."""


def tracker(options: Mapping[str, Any]) -> Tracker:
    """The tracker that ``config.tracker`` asks for: ``wandb`` or ``none``."""
    if options["name"] == "none" or options["mode"] == "disabled":
        return Tracker()
    if options["name"] != "wandb":
        raise UserError(f"tracker.name={options['name']}: choose wandb or none")
    if options["mode"] not in (None, "online", "offline"):
        raise UserError(f"tracker.mode={options['mode']}: choose online, offline, disabled or null")
    from .mirror import WandbTracker

    return WandbTracker(options["project"], options["mode"])
