"""The mirror of a record that was evaluated again, brought up to date."""

from __future__ import annotations

import tempfile
from pathlib import Path

from lra_bench.records.schema import Record

from .choice import tracker


def update(record: Record) -> None:
    """Let the run that holds the record show its summary, tables, figures and files as they are now.

    Nothing happens without an account or offline, nor where the record's cell was not mirrored.
    """
    if "tracker" not in record.config:
        return
    follower = tracker(record.config["tracker"])
    # Online or not at all, so nothing of it has to stay on this machine.
    with tempfile.TemporaryDirectory() as folder:
        follower.resume(record, Path(folder))
        follower.finish(record)
