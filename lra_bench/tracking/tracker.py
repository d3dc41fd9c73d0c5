"""What follows a run."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from lra_bench.records.key import CellKey
from lra_bench.records.schema import Record

if TYPE_CHECKING:
    import pandas as pd


class Tracker:
    """Follows a run: ``start`` or ``resume``, ``log`` at every evaluation, ``finish`` with the record.

    This one does nothing.
    """

    def start(self, config: Mapping[str, Any], key: CellKey, folder: Path) -> None:
        """Begin following the cell ``key``; files go under ``folder``/wandb."""

    def resume(self, record: Record, folder: Path) -> None:
        """Take up the run of a record that was evaluated again; files go under ``folder``/wandb."""

    def log(self, step: int, values: Mapping[str, float]) -> None:
        """Show figures of a step while the run goes on."""

    def finish(self, record: Record, curves: pd.DataFrame | None = None) -> None:
        """Mirror the record, its curves and figures, and end."""
