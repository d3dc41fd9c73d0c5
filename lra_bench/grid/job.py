"""What a job of Slurm does: plan its one cell on the machine it got, run it, and leave a checkpoint when told to go."""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import time
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING

from lra_bench.cell import checkpoint_folder
from lra_bench.child import death
from lra_bench.contracts import UserError

from .execute import wants_run
from .local import INTERRUPTED, LOOK_SECONDS, WRONG_INPUT
from .plan import Planned, plan
from .process import start
from .share import Share
from .submitted import Arrival, arrival, arrival_file
from .unrun import record_unrun

if TYPE_CHECKING:
    from submitit.helpers import DelayedSubmission


class CellJob:
    """Runs one cell of a submitted grid; submitit calls it, and ``checkpoint`` before the job is put back in line."""

    def __init__(
        self, overrides: list[str], results: Path, config_dir: str | None, folder: Path, number: int, rerun: bool
    ) -> None:
        self._arguments = overrides, results, config_dir, folder, number, rerun
        self._process: subprocess.Popen[str] | None = None

    def __call__(self) -> int:
        """Run the cell to its end; the exit code of its process."""
        *_, folder, number, _ = self._arguments
        path, before = arrival_file(folder, number), arrival(folder, number)
        now = Arrival(job_id())
        now.write(path)
        try:
            now.code = self._run(now, path, again=before is not None and before.job == now.job)
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

    def _run(self, now: Arrival, path: Path, again: bool) -> int:
        overrides, results, config_dir, _, _, rerun = self._arguments
        (planned,) = plan(overrides, results, Path(config_dir) if config_dir else None, arrived=True)
        now.key = str(planned.cell.key)
        now.write(path)
        if planned.status == "incompatible":
            record_unrun(planned, results, "incompatible", planned.reason)
            return 0
        if not wants_run(planned, rerun):
            return 0
        if rerun and not again:
            shutil.rmtree(checkpoint_folder(planned.cell.key), ignore_errors=True)
        code = self._wait(planned, results)
        if code in (0, 1, WRONG_INPUT, INTERRUPTED):
            return code
        record_unrun(planned, results, "failed", f"the process of the cell {death(code)}")
        return 1

    def _wait(self, planned: Planned, results: Path) -> int:
        # Slurm sends its signals to all processes of a job; that for us would end the cell, which listens to SIGTERM.
        ours = signal.signal(signal.SIGUSR2, signal.SIG_IGN)
        try:
            process = self._process = start(planned, results, Share())
        finally:
            signal.signal(signal.SIGUSR2, ours)

        def hand_on(number: int, frame: object) -> None:
            with suppress(ProcessLookupError):
                os.kill(process.pid, signal.SIGTERM)

        signal.signal(signal.SIGTERM, hand_on)
        while (code := process.poll()) is None:
            time.sleep(LOOK_SECONDS)
        return code


def job_id() -> str:
    """The id of the job that this process is, as submitit names it."""
    from submitit import JobEnvironment

    return str(JobEnvironment().job_id)
