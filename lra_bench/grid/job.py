"""Refuse jobs that were queued before ``grid.slurm`` existed: their pickles name the class in this module."""

from __future__ import annotations


class CellJob:
    """A queued job of an older version of lra-bench; loading it ends the job with one sentence."""

    def __setstate__(self, state: object) -> None:
        """Raise ``SystemExit``: the modules that the job was made of have moved."""
        raise SystemExit(
            "lra-bench: this job was queued by an older version of lra-bench and cannot run; "
            "submit its cell again with lra-bench grid resume"
        )
