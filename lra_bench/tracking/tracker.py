"""Choose the tracker of a configuration; update the mirrored run of a record."""

from __future__ import annotations

import tempfile
from pathlib import Path

from lra_bench.config.schema import TrackerOptions
from lra_bench.config.serialization import options_from
from lra_bench.records.schema import Record

from .mirror import Tracker, WandbTracker


def tracker(options: TrackerOptions) -> Tracker:
    """Return the tracker of ``config.tracker``: ``wandb`` or ``none``."""
    if options.name == "none" or options.mode == "disabled":
        return Tracker()
    return WandbTracker(options.project, options.mode)


def update(record: Record) -> None:
    """Update the W&B run of a record: its summary, tables, figures and files.

    Does nothing without an account, offline, or if the cell was not mirrored.
    """
    if "tracker" not in record.config:
        return
    run_tracker = tracker(options_from(TrackerOptions, record.config["tracker"], "tracker"))
    # The run is online, so its local files are not needed afterwards.
    with tempfile.TemporaryDirectory() as folder:
        run_tracker.resume(record, Path(folder))
        run_tracker.finish(record)
