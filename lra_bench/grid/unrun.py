"""The record of a cell that could not speak for itself."""

from __future__ import annotations

from pathlib import Path

from lra_bench.cell import blank_record
from lra_bench.records import store
from lra_bench.records.schema import Record

from .plan import Planned


def record_unrun(planned: Planned, results: Path, status: str, reason: str) -> Record:
    """Record a cell that was not run, or whose process died; the record that stands."""
    from lra_bench.records.environment import environment

    record = blank_record(planned.cell, planned.attempt, environment(None))
    record.status, record.reason = status, reason
    return store.keep_best(record, results)
