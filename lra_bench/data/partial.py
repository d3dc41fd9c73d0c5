"""Data that is not all of it, or not as it was: only where the user says so."""

from __future__ import annotations

from lra_bench.contracts import UserError


def require_whole(task: str, lacks: str, allow_partial: bool) -> None:
    """Raise ``UserError`` where ``lacks`` says that something is missing or lossy and the user did not allow that."""
    if lacks and not allow_partial:
        raise UserError(
            f"task={task}: the data is {lacks}; set task.allow_partial=true to use it all the same "
            "(records and tables will say so)"
        )
