"""A Slurm job: plan one cell on the allocated machine, run it, and write a checkpoint before the job is requeued."""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Iterator, Sequence
from contextlib import suppress
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

from lra_bench.cells.subprocess import INTERRUPTED, WRONG_INPUT, CellProcess, write_unmeasured_record
from lra_bench.contracts import UserError
from lra_bench.grid.local_pool import POLL_SECONDS, start
from lra_bench.grid.plan import plan
from lra_bench.grid.resources import Allocation
from lra_bench.grid.search import Outcome, is_searched, run_trials, with_choice
from lra_bench.grid.status import Planned, must_run

from .manifest import Arrival, arrival_file

if TYPE_CHECKING:
    from submitit.helpers import DelayedSubmission


class CellJob:
    """Run one cell of a submitted grid.

    submitit pickles the object and calls it in the job. It calls ``checkpoint`` before the job is requeued.

    Args:
        overrides: Overrides of the cell.
        results: The results folder.
        config_dir: Folder of additional configuration and classes.
        folder: Folder of the submitted grid.
        number: Index of the cell in the grid, from 0.
        rerun: Value of ``--rerun``.
    """

    def __init__(
        self, overrides: list[str], results: Path, config_dir: str | None, folder: Path, number: int, rerun: str
    ) -> None:
        self._arguments = overrides, results, config_dir, folder, number, rerun
        self._process: CellProcess | None = None
        self._stopped = False

    def __call__(self) -> int:
        """Run the cell and return the exit code of its process."""
        *_, folder, number, _ = self._arguments
        path = arrival_file(folder, number)
        now = Arrival(job_id())
        now.write(path)
        try:
            now.code = self._run(now, path)
        except UserError as error:
            now.code, now.reason = WRONG_INPUT, str(error)
        now.write(path)
        return now.code

    def checkpoint(self) -> DelayedSubmission:
        """Stop the cell after it has written a checkpoint, and return a job that continues from it."""
        from submitit.helpers import DelayedSubmission

        if self._process is not None:
            with suppress(ProcessLookupError):
                os.kill(self._process.pid, signal.SIGTERM)
            # Do not use Popen.wait: the code that this handler interrupts may be in a method of the same Popen object.
            with suppress(ChildProcessError):
                os.waitid(os.P_PID, self._process.pid, os.WEXITED | os.WNOWAIT)
        return DelayedSubmission(CellJob(*self._arguments))

    def _run(self, now: Arrival, path: Path) -> int:
        """Plan the cell on this machine, run it if it must run, and return the exit code."""
        overrides, results, config_dir, _, _, rerun = self._arguments
        (planned,) = plan(overrides, results, Path(config_dir) if config_dir else None, arrived=True)
        now.key = str(planned.cell.key)
        now.write(path)
        if planned.status == "incompatible":
            write_unmeasured_record(planned.cell, planned.attempt, results, "incompatible", planned.reason)
            return 0
        if not must_run(planned, rerun):
            return 0
        if is_searched(planned, rerun):
            run_trials([planned], results, rerun, partial(self._run_trials, rerun=rerun))
            if self._stopped:
                return INTERRUPTED
            found = with_choice(planned, results)
            if not isinstance(found, Planned):
                return found[2]
            planned = found
        return self._wait(planned, results, planned.restarts(rerun)).outcome()[1]

    def _run_trials(self, trials: Sequence[Planned], folder: Path, rerun: str) -> Iterator[Outcome]:
        """Run the trials of a search one after the other, until one is stopped by a signal."""
        for each in trials:
            record, code = self._wait(each, folder, each.restarts(rerun)).outcome()
            self._stopped = code == INTERRUPTED
            yield each, record, code
            if self._stopped:
                return

    def _wait(self, planned: Planned, results: Path, restart: bool) -> CellProcess:
        """Start the cell, wait until it has ended and return its process."""
        # Slurm sends SIGUSR2 to all processes of a job. The cell inherits that it is ignored; otherwise it would end.
        previous = signal.signal(signal.SIGUSR2, signal.SIG_IGN)
        try:
            process = self._process = start(planned, results, Allocation(), restart)
        finally:
            signal.signal(signal.SIGUSR2, previous)

        def forward(number: int, frame: object) -> None:
            with suppress(ProcessLookupError):
                os.kill(process.pid, signal.SIGTERM)

        signal.signal(signal.SIGTERM, forward)
        while process.poll() is None:
            time.sleep(POLL_SECONDS)
        return process


def job_id() -> str:
    """Return the id of the job that this process runs, as submitit reports it."""
    from submitit import JobEnvironment

    return str(JobEnvironment().job_id)
