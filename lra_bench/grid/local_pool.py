"""Run cells on this machine, in turn or several at once, each on cores of its own."""

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
from lra_bench.progress import Tell, bar, say
from lra_bench.records import store
from lra_bench.records.key import CellKey
from lra_bench.records.schema import Record
from lra_bench.runtime.files import why
from lra_bench.runtime.signals import deferred

from .resources import Allocation, allocations
from .status import Planned

if TYPE_CHECKING:
    from filelock import BaseFileLock

LOOK_SECONDS = 0.1
OTHERS_SECONDS = 2.0
"""How often to look whether a cell that another process measures is free."""

Outcome = tuple[Planned, Record | None, int]
"""A cell, its record, and the exit code of its process."""


@dataclass
class _Running:
    planned: Planned
    allocation: Allocation
    process: CellProcess
    reserved: BaseFileLock


def run(planned: Sequence[Planned], results: Path, rerun: str) -> Iterator[Outcome]:
    """Run cells and yield each as it ends, also those that another process has measured meanwhile.

    A cell that another process is measuring is left for the end. SIGINT and SIGTERM let running cells end their step
    and write a checkpoint, then raise ``KeyboardInterrupt``. A later SIGTERM has them stop without ending their step, a
    second SIGINT kills them; either way their records are written first. A third SIGINT raises at once.
    """
    waiting, free, running = deque(planned), deque(_allocations(planned)), list[_Running]()
    alone, asked, patient = free[0].alone, signal.SIGINT, False

    def stop(number: int) -> None:
        """Pass the request on as SIGINT, which a cell that the terminal has told already takes for the same one."""
        waiting.clear()
        for each in running:
            each.process.stop(signal.SIGINT)
        if running and not alone:
            say("Cells end their step and write a checkpoint; Ctrl-C again kills them.")

    def stop_now(number: int) -> None:
        nonlocal asked
        if asked == signal.SIGKILL and number == signal.SIGINT:
            raise KeyboardInterrupt
        if asked != signal.SIGKILL:
            asked = signal.SIGKILL if number == signal.SIGINT else signal.SIGTERM
        for each in running:
            each.process.stop(asked)

    with deferred(stop, stop_now) as stopped, _bar(len(planned), alone) as advance:
        try:
            while waiting or running:
                while free and (taken := _next(waiting, results)) is not None:
                    each, reserved = taken
                    record = store.find(each.cell.key, results)
                    if record is not None and already_completed(record, each.attempt):
                        reserved.release()
                        advance(1)
                        yield each, record, exit_code(record.status)
                        continue
                    if alone and len(planned) > 1:
                        say(f"[{len(planned) - len(waiting)}/{len(planned)}] {each.cell.key}")
                    allocation = free.popleft()
                    process = start(each, results, allocation, each.restarts(rerun))
                    running.append(_Running(each, allocation, process, reserved))
                    if stopped() and not process.asked:
                        process.stop(asked)
                if waiting and not running and not patient:
                    say(f"{len(waiting)} cells are being measured by another process; waiting for them.")
                    patient = True
                advance(0, ", ".join(_name(each.planned) for each in running))
                ended = [each for each in running if each.process.poll() is not None]
                for done in ended:
                    running.remove(done)
                    done.reserved.release()
                    free.append(done.allocation)
                    advance(1)
                    yield (outcome := _outcome(done))
                    if alone and outcome[2] == INTERRUPTED:
                        raise KeyboardInterrupt
                if not ended:
                    time.sleep(LOOK_SECONDS if running else OTHERS_SECONDS)
        finally:
            for each_left in running:
                each_left.process.kill()
        if stopped():
            raise KeyboardInterrupt


def _allocations(planned: Sequence[Planned]) -> list[Allocation]:
    """The share of each worker, which cells of one hardware alone have in common."""
    first, *others = {tuple(allocations(each.cell.config)): None for each in planned}
    if others:
        workers = planned[0].cell.config.launcher.workers
        raise UserError(
            f"launcher.workers={workers}: cells of different hardware or workers cannot share a machine; "
            "run them one after the other"
        )
    return list(first)


def _next(waiting: deque[Planned], results: Path) -> tuple[Planned, BaseFileLock] | None:
    """The first cell that no other process has, taken out of ``waiting``, and the right to it; None without one."""
    for _ in range(len(waiting)):
        each = waiting.popleft()
        if (reserved := reserve(each.cell.key, results)) is not None:
            return each, reserved
        waiting.append(each)
    return None


def _bar(total: int, alone: bool) -> AbstractContextManager[Tell]:
    """A bar over cells; none where one cell at a time shows bars of its own."""
    return nullcontext(_quiet) if alone else bar(total, "Measuring", unit="cells")


def _quiet(n: int, doing: str = "", /) -> None:
    pass


def _name(planned: Planned) -> str:
    key = planned.cell.key
    return f"{key.task}/{key.model} {key.seed}"


def _outcome(ended: _Running) -> Outcome:
    key = ended.planned.cell.key
    record, code = ended.process.outcome()
    if code not in (0, INTERRUPTED) and not ended.allocation.alone:
        reason = record.reason if record is not None else next(reversed(ended.process.last_lines), "")
        say(f"{key}: {reason} ({log_file(key)})")
    return ended.planned, record, code


def start(planned: Planned, results: Path, allocation: Allocation, anew: bool) -> CellProcess:
    """Start a cell in a fresh process, with the user's folder on its import path.

    One that is ``alone`` has the terminal; of several each writes to its own log, and Ctrl-C reaches it through us.
    """
    with nullcontext() if allocation.alone else _log(planned) as log:
        return CellProcess(planned.cell, planned.attempt, results, anew, allocation.cores, allocation.cards, log)


def _log(planned: Planned) -> IO[str]:
    """The cell's log, emptied."""
    path = log_file(planned.cell.key)
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        return path.open("w", encoding="utf-8")
    except OSError as error:
        raise UserError(f"LRA_BENCH_CACHE: {path} {why(error)}; set LRA_BENCH_CACHE to another folder") from error


def log_file(key: CellKey) -> Path:
    """Where a cell says what it does when others run beside it: under the cache, by its key."""
    from lra_bench.data.cache import Cache

    return Cache().root / "logs" / key.file("log")
