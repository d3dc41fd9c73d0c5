"""Messages about planned cells: which are not run, where their runs are copied, what they do not use."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path

from lra_bench.errors import from_here
from lra_bench.runtime.hardware import unused_accelerator

from .status import NO_DATA, Planned, must_run, other_threads


def absences(absent: Sequence[Planned]) -> Iterator[str]:
    """Yield why cells cannot run: a line for each task without data, and for each other cell."""
    reasons = {each.cell.key.task: each.reason for each in absent if each.status == NO_DATA}
    for each in absent:
        if each.status != NO_DATA:
            yield f"{each.cell.key}: is not run; {each.reason}"
    for task, reason in reasons.items():
        count = sum(each.cell.key.task == task for each in absent)
        cells = "1 cell is" if count == 1 else f"{count} cells are"
        yield f"{task}: {cells} not run, because there is no data; {reason}"


def destinations(planned: Sequence[Planned], root: Path, rerun: str, wandb: str = "wandb") -> Iterator[str]:
    """Yield where the tracker copies the runs of the cells that must run; ``wandb`` is the program that uploads."""
    from lra_bench.tracking.mirror import tracker

    options = [each.cell.config.tracker for each in planned if must_run(each, rerun)]
    for number, each in enumerate(options):
        if each not in options[:number] and (line := tracker(each).destination(Path(from_here(root)), f"{wandb} sync")):
            yield line


def not_used(planned: Sequence[Planned], root: Path, rerun: str) -> Iterator[str]:
    """Yield which records and which accelerator the cells that must run do not use, with the reason."""
    if threads := other_threads(planned, rerun, root):
        yield threads
    automatic = any(must_run(each, rerun) and each.cell.config.hardware.device == "auto" for each in planned)
    if automatic and (unused := unused_accelerator()):
        yield f"hardware=auto means the CPU: {unused}"
