"""Run cells on this machine, sequentially or several at a time, each with its own CPU cores and GPUs."""

from __future__ import annotations

import signal
import time
from collections import deque
from collections.abc import Iterator, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from pathlib import Path
from typing import IO, TYPE_CHECKING

from lra_bench.cells.cell import already_completed, exit_code
from lra_bench.cells.locks import reserve
from lra_bench.cells.subprocess import INTERRUPTED, CellProcess
from lra_bench.contracts import UserError
from lra_bench.progress import ProgressCallback, bar, say
from lra_bench.records import store
from lra_bench.records.key import CellKey
from lra_bench.records.schema import Record
from lra_bench.runtime.files import why
from lra_bench.runtime.signals import deferred

from .resources import Allocation, allocations
from .status import Planned

if TYPE_CHECKING:
    from filelock import BaseFileLock

POLL_SECONDS = 0.1
"""Polling interval in seconds while at least one cell runs."""

LOCKED_POLL_SECONDS = 2.0
"""Polling interval in seconds while other processes measure all remaining cells."""

Outcome = tuple[Planned, Record | None, int]
"""A cell, its record (None if its input was wrong), and its exit code, see ``CellProcess.outcome``."""


@dataclass
class _Running:
    """A running cell, with its allocation, its process and the lock that was acquired by ``reserve``."""

    planned: Planned
    allocation: Allocation
    process: CellProcess
    reserved: BaseFileLock


def run(planned: Sequence[Planned], results: Path, rerun: str) -> Iterator[Outcome]:
    """Run cells and yield each as it ends, including cells that another process has measured in the meantime.

    A cell that another process is measuring is moved to the end of the queue. No cell is started after a signal:

    - First SIGINT or SIGTERM: running cells finish their step and write a checkpoint and a record.
    - SIGTERM after that: running cells stop within the step and write a record.
    - Second SIGINT: running cells are killed, and this process writes their records.
    - Third SIGINT: ``KeyboardInterrupt`` is raised immediately, and records may be missing.

    In the first three cases ``KeyboardInterrupt`` is raised when all running cells have ended and were yielded.

    Args:
        planned: The cells. All use the same hardware and number of workers.
        results: The results folder.
        rerun: Value of ``--rerun``.

    Yields:
        The outcome of each cell.

    Raises:
        UserError: If the cells use different hardware or numbers of workers.
        KeyboardInterrupt: After a signal, or if the only running cell was interrupted by a signal.
    """
    waiting, free, running = deque(planned), deque(_allocations(planned)), list[_Running]()
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
        """Handle a second or later signal: SIGTERM stops the cells without finishing the step, SIGINT kills them."""
        nonlocal stop_signal
        if stop_signal == signal.SIGKILL and number == signal.SIGINT:
            raise KeyboardInterrupt
        if stop_signal != signal.SIGKILL:
            stop_signal = signal.SIGKILL if number == signal.SIGINT else signal.SIGTERM
        for each in running:
            each.process.stop(stop_signal)

    with deferred(stop, stop_now) as stopped, _bar(len(planned), one_at_a_time) as advance:
        try:
            while waiting or running:
                while free and (acquired := _take_next(waiting, results)) is not None:
                    each, reserved = acquired
                    record = store.find_current(each.cell.key, results)
                    if record is not None and already_completed(record, each.attempt):
                        reserved.release()
                        advance(1)
                        yield each, record, exit_code(record.status)
                        continue
                    if one_at_a_time and len(planned) > 1:
                        say(f"[{len(planned) - len(waiting)}/{len(planned)}] {each.cell.key}")
                    allocation = free.popleft()
                    process = start(each, results, allocation, each.restarts(rerun))
                    running.append(_Running(each, allocation, process, reserved))
                    # A signal that arrived while the process was started was not forwarded to it.
                    if stopped() and not process.stop_requested:
                        process.stop(stop_signal)
                if waiting and not running and not wait_reported:
                    say(f"Other processes are measuring the remaining cells ({len(waiting)}); waiting for them.")
                    wait_reported = True
                advance(0, ", ".join(_name(each.planned) for each in running))
                ended = [each for each in running if each.process.poll() is not None]
                for done in ended:
                    running.remove(done)
                    done.reserved.release()
                    free.append(done.allocation)
                    advance(1)
                    yield (outcome := _outcome(done))
                    # A signal that was sent only to the process of the cell also ends the command.
                    if one_at_a_time and outcome[2] == INTERRUPTED:
                        raise KeyboardInterrupt
                if not ended:
                    time.sleep(POLL_SECONDS if running else LOCKED_POLL_SECONDS)
        finally:
            # Only after an exception, such as a third SIGINT, cells are still running.
            for left in running:
                left.process.kill()
        if stopped():
            raise KeyboardInterrupt


def _allocations(planned: Sequence[Planned]) -> list[Allocation]:
    """Return the allocation of each worker.

    Raises ``UserError`` if the cells use different hardware or numbers of workers.
    """
    distinct = list(dict.fromkeys(tuple(allocations(each.cell.config)) for each in planned))
    if len(distinct) > 1:
        workers = planned[0].cell.config.launcher.workers
        raise UserError(
            f"launcher.workers={workers}: all cells of one command must use the same hardware and launcher.workers; "
            "run the other cells with a separate command"
        )
    return list(distinct[0])


def _take_next(waiting: deque[Planned], results: Path) -> tuple[Planned, BaseFileLock] | None:
    """Remove the first cell that no other process is measuring from the queue, and return it with its lock.

    Cells before it are moved to the end of the queue. Returns None if there is no such cell.
    """
    for _ in range(len(waiting)):
        each = waiting.popleft()
        if (reserved := reserve(each.cell.key, results)) is not None:
            return each, reserved
        waiting.append(each)
    return None


def _bar(total: int, one_at_a_time: bool) -> AbstractContextManager[ProgressCallback]:
    """Return a progress bar over cells, or no bar if cells run sequentially, because each cell shows its own bars."""
    return nullcontext(_no_bar) if one_at_a_time else bar(total, "Measuring", unit="cells")


def _no_bar(n: int, doing: str = "", /) -> None:
    """Show nothing."""


def _name(planned: Planned) -> str:
    """Return the short name of a cell in the progress bar: ``listops/performer 0``."""
    key = planned.cell.key
    return f"{key.task}/{key.model} {key.seed}"


def _outcome(ended: _Running) -> Outcome:
    """Return the outcome of a cell that has ended.

    If its output was written to a log, the reason of a failure and the path of the log are printed.
    """
    key = ended.planned.cell.key
    record, code = ended.process.outcome()
    if code not in (0, INTERRUPTED) and not ended.allocation.whole_machine:
        reason = record.reason if record is not None else next(reversed(ended.process.last_lines), "")
        say(f"{key}: {reason} ({log_file(key)})")
    return ended.planned, record, code


def start(planned: Planned, results: Path, allocation: Allocation, restart: bool) -> CellProcess:
    """Start a cell in a new process.

    If the allocation is the whole machine, the process writes to the terminal and receives Ctrl-C from it. Otherwise it
    writes to its own log and receives signals only from this process.

    Args:
        planned: The cell.
        results: The results folder.
        allocation: The cores and GPUs that the process may use.
        restart: Whether to ignore the checkpoints of earlier attempts.

    Returns:
        The process.

    Raises:
        UserError: If the log cannot be written.
    """
    # The new process has its own descriptor of the log, so this process closes the file.
    with nullcontext() if allocation.whole_machine else _log(planned) as log:
        return CellProcess(
            planned.cell, planned.attempt, results, restart, allocation.cores, allocation.visible_gpus, log
        )


def _log(planned: Planned) -> IO[str]:
    """Open the cell's log for writing; its previous content is discarded."""
    path = log_file(planned.cell.key)
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        return path.open("w", encoding="utf-8")
    except OSError as error:
        raise UserError(f"LRA_BENCH_CACHE: {path} {why(error)}; set LRA_BENCH_CACHE to another folder") from error


def log_file(key: CellKey) -> Path:
    """Return the path of a cell's log in the cache folder; a log is written if several cells run at the same time."""
    from lra_bench.data.cache import Cache

    return Cache().root / "logs" / key.file("log")
