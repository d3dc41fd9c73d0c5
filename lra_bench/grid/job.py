"""Reject jobs that were queued before ``grid.slurm`` existed. Their pickles refer to the class in this module."""

from __future__ import annotations


class CellJob:
    """A queued job of an older version of lra-bench. Unpickling it ends the job with an error message."""

    def __setstate__(self, state: object) -> None:
        """Raise ``SystemExit``, because the modules that the pickled job refers to have moved."""
        raise SystemExit(
            "lra-bench: this job was queued by an older version of lra-bench and cannot run; "
            "submit its cell again with lra-bench grid resume"
        )
