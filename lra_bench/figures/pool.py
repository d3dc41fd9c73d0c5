"""Draw all figures with two processes.

A second process draws from the front of the list of figures while the calling process computes their data. Then the
calling process draws from the end of the list.
"""

from __future__ import annotations

import gc
import importlib
import multiprocessing
import signal
import threading
from collections import deque
from collections.abc import Callable, Generator, Iterator, Sequence
from contextlib import contextmanager, suppress
from multiprocessing.connection import Connection
from pathlib import Path
from queue import SimpleQueue
from typing import TYPE_CHECKING

from lra_bench.contracts import UserError
from lra_bench.progress import bar, say
from lra_bench.runtime.files import remove_unfinished
from lra_bench.runtime.garbage import DEFAULT_THRESHOLDS
from lra_bench.runtime.processor import usable_cpus
from lra_bench.runtime.signals import deferred, interrupt
from lra_bench.runtime.subprocesses import end_with_parent, ended_by

from . import FIGURES, NothingToDrawError, render, tabulate
from .style import check_output, width_inches
from .variants import SHEET

if TYPE_CHECKING:
    import pandas as pd

    from lra_bench.records.schema import Record

WORTHWHILE_RECORDS = 50
"""Minimum number of records for a second process; fewer are drawn before one has started. It uses about 300 MiB."""

POLL_SECONDS = 0.02
"""Interval at which the second process is offered figures whose data has been computed."""

Outcome = Sequence[Path] | Exception
Drawing = tuple[str, "pd.DataFrame", Path, str]
"""Arguments of ``render``."""


def draw_all(
    records: list[Record], folder: Path, width: str = "two", names: Sequence[str] = tuple(FIGURES)
) -> Generator[tuple[str, Outcome]]:
    """Draw figures and yield the name of each with its paths, or with the exception that was raised.

    A name is yielded once for each protocol. Figures without data are reported on stderr. If the caller closes the
    iterator or is interrupted, the second process is killed and partial files are removed.

    Args:
        records: The records to draw. The list is cleared after the data of all figures is computed, to free memory.
        folder: The output folder.
        width: The width of the figures, ``one`` or ``two`` columns of a paper.
        names: The names of the figures.

    Yields:
        The name of a figure, and the paths of its files or the exception.

    Raises:
        UserError: If ``width`` is unknown or the folder cannot be written.
    """
    width_inches(width)
    check_output(folder)
    total = drawn = 0
    remaining: deque[Drawing] = deque()
    done: SimpleQueue[tuple[str, Outcome]] = SimpleQueue()
    with _helper(folder, len(records)) as helper:
        feeding = helper.draw(remaining, done) if helper else None
        with bar(len(names), "computing the data of figures", unit="figures") as advance:
            for name in names:
                parts = _data_by_protocol(name, records)
                total += len(parts)
                remaining.extend((name, part, folder, width) for part in parts)
                advance(1, name)
                for finished in _finished(done):
                    drawn += 1
                    yield finished
        records.clear()  # the data of figures needs far less memory
        if helper:
            helper.complete.set()
        with (
            _frozen_garbage_collection(),
            deferred(act=interrupt) as interrupted,
            bar(total, "drawing", start=drawn, unit="figures") as advance,
        ):
            for name, outcome in _drawn(remaining, done, feeding, interrupted):
                yield name, outcome
                advance(1, name)


def _data_by_protocol(name: str, records: Sequence[Record]) -> list[pd.DataFrame]:
    """Return the data of one figure by protocol and section; report on stderr if there is none."""
    try:
        return [part for _, part in tabulate(name, records).groupby(SHEET, dropna=False)]
    except NothingToDrawError as error:
        say(str(error))
        return []


def _finished(done: SimpleQueue[tuple[str, Outcome]]) -> Iterator[tuple[str, Outcome]]:
    """Yield the outcomes received from the second process so far."""
    while not done.empty():
        yield done.get()


def _drawn(
    remaining: deque[Drawing],
    done: SimpleQueue[tuple[str, Outcome]],
    feeding: threading.Thread | None,
    interrupted: Callable[[], bool],
) -> Iterator[tuple[str, Outcome]]:
    """Draw the remaining figures, and yield their outcomes and those of the second process.

    ``feeding`` is the thread that sends figures to the second process, None if there is no such process.

    Raises ``KeyboardInterrupt`` if ``interrupted`` returns true after a figure.
    """
    while (feeding and feeding.is_alive()) or remaining or not done.empty():
        with suppress(IndexError):  # the helper may have taken the last figure in the meantime
            drawing = remaining.pop()
            outcome = _rendered(drawing)
            # A library may catch KeyboardInterrupt, or raise another exception during its cleanup.
            if interrupted():
                raise KeyboardInterrupt
            yield drawing[0], outcome
        if feeding and not remaining:
            feeding.join(POLL_SECONDS)
        yield from _finished(done)


class _Helper:
    """A second process that draws figures; it imports its libraries while this process computes the data."""

    def __init__(self) -> None:
        # Not forked: threads of numerical libraries do not survive a fork, and the child would keep the records.
        context = multiprocessing.get_context("spawn")
        self._connection, child_connection = context.Pipe()
        self._process = context.Process(target=_serve, args=(child_connection,), daemon=True)
        self._process.start()
        self._expected = True
        self.complete = threading.Event()  # set when no more figures are added
        child_connection.close()

    def draw(self, remaining: deque[Drawing], done: SimpleQueue[tuple[str, Outcome]]) -> threading.Thread:
        """Start drawing from the front of ``remaining``; return the thread, which puts the outcomes into ``done``.

        The thread ends if nothing remains after ``complete`` is set, or with the process.
        """
        thread = threading.Thread(target=self._feed, args=(remaining, done), daemon=True)
        thread.start()
        return thread

    def _feed(self, remaining: deque[Drawing], done: SimpleQueue[tuple[str, Outcome]]) -> None:
        while remaining or not self.complete.wait(POLL_SECONDS):
            with suppress(IndexError):  # the main process may have taken the last figure in the meantime
                drawing = remaining.popleft()
                try:
                    self._connection.send(drawing)
                    done.put((drawing[0], self._connection.recv()))
                except (EOFError, OSError):
                    remaining.appendleft(drawing)
                    if self._expected:
                        self._process.join()
                        how = ended_by(self._process.exitcode or 0)
                        say(f"plot {drawing[0]}: the second process {how}; this process draws the remaining figures")
                    break

    def end(self, folder: Path) -> None:
        """Kill the process and remove its partial files from ``folder``."""
        self._expected = False
        self._process.kill()
        self._process.join()
        if self._process.pid is not None:
            remove_unfinished(folder, self._process.pid)


@contextmanager
def _helper(folder: Path, records: int) -> Iterator[_Helper | None]:
    """Yield a second process, or None if there are too few records or CPUs; kill it when the context ends."""
    if records < WORTHWHILE_RECORDS or usable_cpus() < 2:
        yield None
        return
    helper = _Helper()
    try:
        yield helper
    finally:
        helper.end(folder)


@contextmanager
def _frozen_garbage_collection() -> Iterator[None]:
    """Exclude existing objects from garbage collection in the context, to save the time of scanning them.

    Collections run at the default thresholds: drawn figures are reference cycles of megabytes.
    """
    thresholds = gc.get_threshold()
    gc.collect()
    gc.freeze()
    gc.set_threshold(*DEFAULT_THRESHOLDS)
    try:
        yield
    finally:
        gc.unfreeze()
        gc.set_threshold(*thresholds)


def _rendered(drawing: Drawing) -> Outcome:
    try:
        return render(*drawing)
    except UserError as error:
        return error
    except Exception as error:
        return RuntimeError(f"{type(error).__name__}: {error}")


def _serve(connection: Connection) -> None:
    """Draw the figures received from ``connection`` until it is closed; the main function of the second process."""
    # Ctrl-C is sent to every process of the terminal. The parent kills this process and removes its partial files.
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    end_with_parent(signal.SIGKILL)
    for name in ("pandas", "matplotlib.backends.backend_agg", "matplotlib.backends.backend_pdf"):
        importlib.import_module(name)
    with suppress(EOFError), _frozen_garbage_collection():
        while True:
            connection.send(_rendered(connection.recv()))
