"""Submit cells to Slurm through submitit, whose local executor runs the same jobs without Slurm."""

from __future__ import annotations

import importlib.util
import json
import os
import shutil
import signal
import subprocess
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager, nullcontext, suppress
from dataclasses import dataclass
from pathlib import Path
from types import FrameType
from typing import TYPE_CHECKING, Any, ClassVar

from lra_bench.config.schema import CellConfig
from lra_bench.contracts import CellJob, UserError, install_command
from lra_bench.options.declaration import AT_LEAST_ONE, NOT_NEGATIVE, POSITIVE, choose, option
from lra_bench.runtime.subprocesses import environment

from .queue import Queue
from .resources import cores_of, with_threads

if TYPE_CHECKING:
    import psutil
    from submitit.helpers import DelayedSubmission

POLL_SECONDS = 0.1
MOST_REQUEUES = 100
"""Maximum number of times that a job which reaches its time limit is requeued; it resumes from its checkpoint."""

ENDED = ("BOOT_FAIL", "CANCELLED", "COMPLETED", "DEADLINE", "FAILED", "NODE_FAIL", "OUT_OF_MEMORY", "TIMEOUT")


@dataclass
class Slurm(Queue):
    """Submits cells as job arrays, one for each set of requested resources.

    Attributes:
        cluster: ``slurm``, or ``local`` to run the same jobs on this machine, all at the same time.
        partition: Partition, by default that of the cluster.
        account: Account, by default that of the user.
        minutes: Time limit of a job.
        cpus: Cores of a cell, by default one for each thread of each process.
        gpus: GPUs of a cell, by default one for each process on CUDA.
        memory_gigabytes: Memory of a cell, by default that of the cluster.
        at_once: Largest number of cells of an array that run at the same time.
        signal_seconds: Time between the signal to write a checkpoint and the time limit.
    """

    place: ClassVar[Sequence[str]] = ("cluster", "partition", "cpus", "gpus")

    cluster: str = option("slurm", choose(("slurm", "local")))
    partition: str | None = None
    account: str | None = None
    minutes: int = option(240, AT_LEAST_ONE)
    cpus: int | None = option(None, AT_LEAST_ONE)
    gpus: int | None = option(None, NOT_NEGATIVE)
    memory_gigabytes: float | None = option(None, POSITIVE)
    at_once: int | None = option(None, AT_LEAST_ONE)
    signal_seconds: int = option(90, AT_LEAST_ONE)

    def __post_init__(self) -> None:
        if self.signal_seconds >= 60 * self.minutes:
            raise UserError(
                f"launcher.signal_seconds={self.signal_seconds}: is not below the time limit of a job "
                f"(launcher.minutes={self.minutes}); lower launcher.signal_seconds or raise launcher.minutes"
            )

    def adapted(self, config: CellConfig) -> CellConfig:
        """Return the configuration with one thread for each core that a process has."""
        return with_threads(config, self.cpus or cores_of(config))

    def resources(self, job: CellJob) -> dict[str, Any]:
        """Return the resources of a cell as parameters of submitit, without those that the cluster determines.

        Raises ``UserError`` if the threads of the cell exceed ``cpus``.
        """
        if self.cpus and job.cores > self.cpus:
            raise UserError(
                f"launcher.cpus={self.cpus}: the threads of a cell need {job.cores} cores; raise launcher.cpus, or "
                "lower hardware.threads or hardware.processes"
            )
        parameters = {
            "timeout_min": self.minutes,
            "cpus_per_task": self.cpus or job.cores,
            "gpus_per_node": (job.gpus if self.gpus is None else self.gpus) or None,
            "mem_gb": self.memory_gigabytes,
            "slurm_partition": self.partition,
            "slurm_account": self.account,
            "slurm_array_parallelism": self.at_once,  # limit of each array, not of the grid
            "slurm_signal_delay_s": self.signal_seconds,
            "slurm_additional_parameters": {"requeue": True},
        }
        return {name: value for name, value in parameters.items() if value is not None}

    def submit(self, jobs: Sequence[CellJob], logs: Path) -> Iterator[Mapping[CellJob, str]]:
        """Submit an array for each set of resources, and yield the ids of its jobs."""
        if importlib.util.find_spec("submitit") is None:
            raise UserError(f"launcher=slurm: needs submitit; install it with {install_command('slurm')}")
        if self.cluster == "slurm" and shutil.which("sbatch") is None:
            raise UserError(
                "launcher=slurm: sbatch is not available here; submit from a login node or set launcher.cluster=local"
            )
        import submitit
        from submitit.core.utils import FailedJobError, FailedSubmissionError

        arrays: dict[str, list[CellJob]] = {}
        for job in jobs:
            arrays.setdefault(json.dumps(self.resources(job), sort_keys=True), []).append(job)
        for array in arrays.values():
            executor = submitit.AutoExecutor(logs, cluster=self.cluster, slurm_max_num_timeout=MOST_REQUEUES)
            executor.update_parameters(name="lra-bench", **self.resources(array[0]))
            with _job_environment(), _output_discarded() if self.cluster == "local" else nullcontext():
                try:
                    submitted = executor.submit_array([SlurmJob(job.command) for job in array])
                except (OSError, FailedJobError, FailedSubmissionError) as error:
                    # For errors of sbatch the last line contains the reason.
                    *_, reason = (str(error).strip() or type(error).__name__).splitlines()
                    raise UserError(f"launcher=slurm: the jobs cannot be submitted ({reason})") from error
            yield {job: str(each.job_id) for job, each in zip(array, submitted, strict=True)}

    def states(self, jobs: Sequence[str]) -> dict[str, str] | None:
        """Return the state of each job that has not ended, as squeue reports it, in lower case."""
        if self.cluster == "local":
            return {job: "running" for job in jobs if local_job(job) is not None}
        try:
            # Print one line per task of an array. Request all jobs: naming a job that has ended would be an error.
            command = ["squeue", "--noheader", "--array", "--states=all", "--format=%F_%K %i %T"]
            done = subprocess.run(command, capture_output=True, text=True, timeout=60, check=True)
        except (OSError, subprocess.SubprocessError):
            return None
        found = {}
        for line in done.stdout.splitlines():
            task, alone, state = line.split()
            if state not in ENDED:
                found[task] = found[alone] = state.lower()
        return {job: found[job] for job in jobs if job in found}

    def cancel(self, jobs: Sequence[str]) -> None:
        """Cancel jobs; a running one passes SIGTERM on to its command."""
        if self.cluster == "slurm":
            done = subprocess.run(["scancel", *jobs], capture_output=True, text=True, check=False)
            if done.returncode:
                raise UserError(f"grid stop: scancel failed ({done.stderr.strip()})")
            return
        for job in jobs:
            if (process := local_job(job)) is not None:
                process.terminate()


class SlurmJob:
    """Runs the command of a cell in a job. submitit pickles the object and calls it there.

    It calls ``checkpoint`` before the job is requeued.
    """

    def __init__(self, command: Sequence[str]) -> None:
        self._command = tuple(command)
        self._process: subprocess.Popen[bytes] | None = None

    def __call__(self) -> int:
        """Run the command, pass SIGTERM on to it, and return its exit code."""
        # Slurm sends SIGUSR2 to all processes of a job. The command inherits that it is ignored, and does not end.
        previous = signal.signal(signal.SIGUSR2, signal.SIG_IGN)
        try:
            process = self._process = subprocess.Popen(self._command, env=environment())
        finally:
            signal.signal(signal.SIGUSR2, previous)
        signal.signal(signal.SIGTERM, self._terminate)
        while process.poll() is None:
            time.sleep(POLL_SECONDS)
        return process.returncode

    def checkpoint(self) -> DelayedSubmission:
        """Stop the command after it has written a checkpoint, and return a job that continues from it."""
        from submitit.helpers import DelayedSubmission

        if self._process is not None:
            self._terminate(signal.SIGTERM, None)
            # Popen.wait is not reentrant, and this handler may interrupt a method of the same object.
            with suppress(ChildProcessError):
                os.waitid(os.P_PID, self._process.pid, os.WEXITED | os.WNOWAIT)
        return DelayedSubmission(SlurmJob(self._command))

    def _terminate(self, number: int, frame: FrameType | None) -> None:
        assert self._process is not None
        with suppress(ProcessLookupError):
            os.kill(self._process.pid, signal.SIGTERM)


def local_job(job: str) -> psutil.Process | None:
    """Return the process that runs a job of submitit's local executor, or None if it has ended."""
    import psutil

    try:
        process = psutil.Process(int(job))
        is_executor = any("submitit" in word for word in process.cmdline())
        return process if is_executor and process.status() != psutil.STATUS_ZOMBIE else None
    except (psutil.Error, ValueError, OverflowError):
        return None


@contextmanager
def _job_environment() -> Iterator[None]:
    """Set environment variables in this process, which the submitted jobs inherit."""
    before = dict(os.environ)
    os.environ.update(environment())
    try:
        yield
    finally:
        os.environ.clear()
        os.environ.update(before)


@contextmanager
def _output_discarded() -> Iterator[None]:
    """Redirect stdout and stderr of this process to the null device.

    Otherwise the jobs of the local executor would inherit them, and a process that reads the output of this command
    would wait until the jobs end.
    """
    with ExitStack() as stack:
        null = os.open(os.devnull, os.O_WRONLY)
        stack.callback(os.close, null)
        for number in (1, 2):
            saved = os.dup(number)
            stack.callback(os.close, saved)
            stack.callback(os.dup2, saved, number)
            os.dup2(null, number)
        yield
