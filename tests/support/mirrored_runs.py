"""Mirror finished cells on W&B."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from lra_bench.config.schema import TrackerOptions
from lra_bench.records import store
from lra_bench.records.schema import Record
from lra_bench.tracking.mirror import tracker
from tests.support.record_factory import make_curves

OFFLINE = {"name": "wandb", "project": "lra-bench", "mode": "offline"}
ONLINE = {**OFFLINE, "mode": "online"}

PLAIN: dict[str, Any] = {"speed": [], "extrapolation": None}
"""Fields of a record without data for figures."""


def mirror_record(record: Record, folder: Path, options: Mapping[str, Any]) -> Record:
    """Write a record to the results in ``folder``, mirror it with two live steps, and return it."""
    curves = make_curves()
    store.write(record, folder, curves)
    mirror = tracker(TrackerOptions(**options))
    mirror.start(record.config, record.key, folder)
    for step in (25, 50):
        mirror.log(step, {"train_loss": 2.0 - step / 100, "validation_score": step / 100})
    mirror.finish(record, curves)
    return record
