"""What a job of Slurm does: plan its one cell on the machine it got, run it, and leave a checkpoint when told to go."""

from __future__ import annotations

import os
import signal
import time
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING

from lra_bench.cells.subprocess import WRONG_INPUT, CellProcess, write_placeholder_record
from lra_bench.contracts import UserError
from lra_bench.grid.execute import wants_run
from lra_bench.grid.local_pool import LOOK_SECONDS, start
from lra_bench.grid.plan import plan
from lra_bench.grid.resources import Allocation
from lra_bench.grid.status import Planned

from .manifest import Arrival, arrival_file

if TYPE_CHECKING:
    from submitit.helpers import DelayedSubmission


class CellJob:
    """Runs one cell of a submitted grid; submitit calls it, and ``checkpoint`` before the job is put back in line."""

    def __init__(
        self, overrides: list[str], results: Path, config_dir: str | None, folder: Path, number: int, rerun: str
    ) -> None:
        self._arguments = overrides, results, config_dir, folder, number, rerun
        self._process: CellProcess | None = None

    def __call__(self) -> int:
        """Run the cell to its end; the exit code of its process."""
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
        """Have the cell end its step and write a checkpoint; the same job, which continues from there."""
        from submitit.helpers import DelayedSubmission

        if self._process is not None:
            with suppress(ProcessLookupError):
                os.kill(self._process.pid, signal.SIGTERM)
            # Not Popen.wait: what this interrupts may be asking the same object.
            with suppress(ChildProcessError):
                os.waitid(os.P_PID, self._process.pid, os.WEXITED | os.WNOWAIT)
        return DelayedSubmission(CellJob(*self._arguments))

    def _run(self, now: Arrival, path: Path) -> int:
        overrides, results, config_dir, _, _, rerun = self._arguments
        (planned,) = plan(overrides, results, Path(config_dir) if config_dir else None, arrived=True)
        now.key = str(planned.cell.key)
        now.write(path)
        if planned.status == "incompatible":
            write_placeholder_record(planned.cell, planned.attempt, results, "incompatible", planned.reason)
            return 0
        if not wants_run(planned, rerun):
            return 0
        return self._wait(planned, results, planned.restarts(rerun)).outcome()[1]

    def _wait(self, planned: Planned, results: Path, anew: bool) -> CellProcess:
        # Slurm sends its signals to all processes of a job; that for us would end the cell, which listens to SIGTERM.
        ours = signal.signal(signal.SIGUSR2, signal.SIG_IGN)
        try:
            process = self._process = start(planned, results, Allocation(), anew)
        finally:
            signal.signal(signal.SIGUSR2, ours)

        def hand_on(number: int, frame: object) -> None:
            with suppress(ProcessLookupError):
                os.kill(process.pid, signal.SIGTERM)

        signal.signal(signal.SIGTERM, hand_on)
        while process.poll() is None:
            time.sleep(LOOK_SECONDS)
        return process


def job_id() -> str:
    """The id of the job that this process is, as submitit names it."""
    from submitit import JobEnvironment

    return str(JobEnvironment().job_id)
