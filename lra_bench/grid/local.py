"""Run cells on this machine, sequentially or several at a time, each with its own CPU cores and GPUs."""

from __future__ import annotations

import os
import signal
import time
from collections import deque
from collections.abc import Iterator, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, replace
from pathlib import Path
from typing import IO, TYPE_CHECKING

from lra_bench.cells.cell import already_completed, exit_code
from lra_bench.cells.locks import reserve
from lra_bench.cells.subprocess import INTERRUPTED, CellProcess
from lra_bench.config.schema import CellConfig
from lra_bench.contracts import CellJob, Launcher, Outcome, UserError
from lra_bench.options.declaration import AT_LEAST_ONE, option
from lra_bench.progress import ProgressCallback, bar, say
from lra_bench.records import store
from lra_bench.records.key import CellKey
from lra_bench.runtime.files import why
from lra_bench.runtime.hardware import HardwareOptions, on_cpu, processes_of, visible_gpus
from lra_bench.runtime.processor import usable_cpus
from lra_bench.runtime.signals import deferred

from .resources import with_threads
from .status import Planned

if TYPE_CHECKING:
    from filelock import BaseFileLock

POLL_SECONDS = 0.1
"""Polling interval in seconds while at least one cell runs."""

LOCKED_POLL_SECONDS = 2.0
"""Polling interval in seconds while other processes measure all remaining cells."""


@dataclass(frozen=True)
class Allocation:
    """The CPU cores and GPUs that a cell may use.

    ``visible_gpus`` is a value of ``CUDA_VISIBLE_DEVICES``. None means all cores or all GPUs. ``whole_machine`` is True
    if only one cell runs at a time.
    """

    cores: tuple[int, ...] | None = None
    visible_gpus: str | None = None
    whole_machine: bool = True


@dataclass
class _Running:
    """A running cell, with its allocation, its process and the lock that was acquired by ``reserve``."""

    job: CellJob
    allocation: Allocation
    process: CellProcess
    reserved: BaseFileLock


@dataclass
class Local(Launcher):
    """Runs cells on this machine, each in a new process.

    Attributes:
        workers: Number of cells that run at the same time, each with its own cores and GPUs, by default 1.
        cells_per_gpu: Largest number of them that share a GPU, by default 1; energy, which cannot be attributed to one
            of several cells, is then not measured.
    """

    workers: int | None = option(None, AT_LEAST_ONE)
    cells_per_gpu: int | None = option(None, AT_LEAST_ONE)

    def parallel(self) -> int:
        """Return the number of workers."""
        return self.workers or 1

    def adapted(self, config: CellConfig) -> CellConfig:
        """Return the configuration with the number of threads of a worker; without energy, if cells share a GPU.

        Raises ``UserError`` if all workers together need more cores, threads or GPUs than there are.
        """
        workers, shared, total = self.parallel(), self.cells_per_gpu, usable_cpus()
        if workers == 1:
            return config
        if workers > total:
            raise UserError(f"launcher.workers={workers}: this machine has {total} usable cores; lower it")
        if not on_cpu(config.hardware):
            self._check_gpus(config.hardware)
            return replace(config, measure=replace(config.measure, energy=False)) if (shared or 1) > 1 else config
        if shared is not None:
            raise UserError(f"launcher.cells_per_gpu={shared}: the cells run on a CPU; leave it out")
        return with_threads(config, total // workers)

    def _check_gpus(self, hardware: HardwareOptions) -> None:
        workers, shared, processes = self.parallel(), self.cells_per_gpu or 1, processes_of(hardware)
        if hardware.strategy != "none" and hardware.processes is None:
            raise UserError(
                f"launcher.workers={workers}: the number of GPUs per cell is not set; set hardware.processes"
            )
        if processes > 1 and shared > 1:
            raise UserError(
                f"launcher.cells_per_gpu={shared}: cells of {processes} processes cannot share a GPU; leave it out"
            )
        available, needed = len(visible_gpus()), -(-workers // shared) * processes
        if needed > available:
            raise UserError(
                f"launcher.workers={workers}: {workers} cells need {needed} GPUs, {available} are available; "
                "lower launcher.workers or raise launcher.cells_per_gpu"
            )

    def allocations(self, hardware: HardwareOptions) -> list[Allocation]:
        """Return the allocation of each worker."""
        workers = self.parallel()
        if workers == 1:
            return [Allocation()]
        cores = sorted(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else []
        visible = [] if on_cpu(hardware) else visible_gpus()
        cores_each, gpus_each = len(cores) // workers, 0 if not visible else processes_of(hardware)
        first_gpu = [number // (self.cells_per_gpu or 1) * gpus_each for number in range(workers)]
        return [
            Allocation(
                cores=tuple(cores[number * cores_each : (number + 1) * cores_each]) or None,
                visible_gpus=",".join(visible[first_gpu[number] : first_gpu[number] + gpus_each]) if visible else None,
                whole_machine=False,
            )
            for number in range(workers)
        ]

    def launch(self, jobs: Sequence[CellJob]) -> Iterator[Outcome]:
        """Run cells and yield each as it ends, including cells that another process has measured in the meantime.

        A cell that another process is measuring is moved to the end of the queue. No cell is started after a signal:

        - First SIGINT or SIGTERM: running cells finish their step and write a checkpoint and a record.
        - SIGTERM after that: running cells stop within the step and write a record.
        - Second SIGINT: running cells are killed, and this process writes their records.
        - Third SIGINT: ``KeyboardInterrupt`` is raised immediately, and records may be missing.

        In the first three cases ``KeyboardInterrupt`` is raised when all running cells have ended and were yielded.

        It is also raised if the only running cell was interrupted by a signal. Raises ``UserError`` if the workers of
        the cells would need different cores or GPUs.
        """
        allocations = {tuple(self.allocations(job.planned.cell.config.hardware)) for job in jobs}
        if len(allocations) > 1:
            raise UserError(
                f"launcher.workers={self.workers}: all cells of one command must use the same hardware; run the other "
                "cells with a separate command"
            )
        waiting, free, running = deque(jobs), deque(allocations.pop()), list[_Running]()
        one_at_a_time, stop_signal, wait_reported = free[0].whole_machine, signal.SIGINT, False

        def stop(number: int) -> None:
            """Handle the first signal: forward it as SIGINT.

            A cell that shares the terminal has also received Ctrl-C directly; it treats the two as one request.
            """
            waiting.clear()
            for each in running:
                each.process.stop(signal.SIGINT)
            if running and not one_at_a_time:
                say("Running cells finish their step and write a checkpoint; press Ctrl-C again to kill them.")

        def stop_now(number: int) -> None:
            """Handle a later signal: SIGTERM stops the cells without finishing the step, SIGINT kills them."""
            nonlocal stop_signal
            if stop_signal == signal.SIGKILL and number == signal.SIGINT:
                raise KeyboardInterrupt
            if stop_signal != signal.SIGKILL:
                stop_signal = signal.SIGKILL if number == signal.SIGINT else signal.SIGTERM
            for each in running:
                each.process.stop(stop_signal)

        # Cells that run sequentially show their own bars.
        shown: AbstractContextManager[ProgressCallback] = nullcontext(lambda n, doing="", /: None)
        if not one_at_a_time:
            shown = bar(len(jobs), "Measuring", unit="cells")
        with deferred(stop, stop_now) as stopped, shown as advance:
            try:
                while waiting or running:
                    while free and (acquired := _take_next(waiting)) is not None:
                        job, reserved = acquired
                        planned: Planned = job.planned
                        record = store.find(planned.cell.key, job.results)
                        if record is not None and already_completed(record, planned.attempt):
                            reserved.release()
                            advance(1)
                            yield Outcome(job, exit_code(record.status))
                            continue
                        if one_at_a_time and len(jobs) > 1:
                            say(f"[{len(jobs) - len(waiting)}/{len(jobs)}] {planned.cell.key}")
                        allocation = free.popleft()
                        process = _start(job, allocation)
                        running.append(_Running(job, allocation, process, reserved))
                        # A signal that arrived while the process was started was not forwarded to it.
                        if stopped() and not process.stop_requested:
                            process.stop(stop_signal)
                    if waiting and not running and not wait_reported:
                        say(f"Other processes are measuring the remaining cells ({len(waiting)}); waiting for them.")
                        wait_reported = True
                    keys = (each.job.planned.cell.key for each in running)
                    advance(0, ", ".join(f"{key.task}/{key.model} {key.seed}" for key in keys))
                    ended = [each for each in running if each.process.poll() is not None]
                    for done in ended:
                        running.remove(done)
                        done.reserved.release()
                        free.append(done.allocation)
                        advance(1)
                        yield (outcome := _outcome(done))
                        # A signal that was sent only to the process of the cell also ends the command.
                        if one_at_a_time and outcome.code == INTERRUPTED:
                            raise KeyboardInterrupt
                    if not ended:
                        time.sleep(POLL_SECONDS if running else LOCKED_POLL_SECONDS)
            finally:
                # Only after an exception, such as a third SIGINT, cells are still running.
                for left in running:
                    left.process.kill()
            if stopped():
                raise KeyboardInterrupt


def _take_next(waiting: deque[CellJob]) -> tuple[CellJob, BaseFileLock] | None:
    """Remove the first cell that no other process is measuring from the queue, and return it with its lock.

    Cells before it are moved to the end of the queue. Returns None if there is no such cell.
    """
    for _ in range(len(waiting)):
        each = waiting.popleft()
        if (reserved := reserve(each.planned.cell.key, each.results)) is not None:
            return each, reserved
        waiting.append(each)
    return None


def _outcome(ended: _Running) -> Outcome:
    """Return the outcome of a cell that has ended.

    If its output was written to a log, the reason of a failure and the path of the log are printed.
    """
    key = ended.job.planned.cell.key
    record, code = ended.process.outcome()
    if code not in (0, INTERRUPTED) and not ended.allocation.whole_machine:
        reason = record.reason if record is not None else next(reversed(ended.process.last_lines), "")
        say(f"{key}: {reason} ({log_file(key)})")
    return Outcome(ended.job, code)


def _start(job: CellJob, allocation: Allocation) -> CellProcess:
    """Start a cell in a new process.

    If the allocation is the whole machine, the process writes to the terminal and receives Ctrl-C from it. Otherwise it
    writes to its own log and receives signals only from this process. Raises ``UserError`` if there can be no log.
    """
    planned: Planned = job.planned
    log: AbstractContextManager[IO[str] | None] = nullcontext()
    if not allocation.whole_machine:
        path = log_file(planned.cell.key)
        try:
            path.parent.mkdir(parents=True, exist_ok=True)
            log = path.open("w", encoding="utf-8")
        except OSError as error:
            raise UserError(f"LRA_BENCH_CACHE: {path} {why(error)}; set LRA_BENCH_CACHE to another folder") from error
    with log as output:  # the new process has its own descriptor of the log
        return CellProcess(
            *(planned.cell, planned.attempt, job.results, job.restart),
            *(allocation.cores, allocation.visible_gpus, output),
        )


def log_file(key: CellKey) -> Path:
    """Return the path of a cell's log in the cache folder; a log is written if several cells run at the same time."""
    from lra_bench.data.cache import Cache

    return Cache().root / "logs" / key.file("log")
