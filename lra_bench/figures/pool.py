"""All figures at once, side by side: a second process draws from the front of the list, this one from its end."""

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
from lra_bench.runtime.hardware import usable_cpus
from lra_bench.runtime.signals import deferred, interrupt
from lra_bench.runtime.subprocesses import end_with_parent, ended_by

from . import FIGURES, NothingToDrawError, render, tabulate
from .style import width_inches
from .variants import SHEET

if TYPE_CHECKING:
    import pandas as pd

    from lra_bench.records.schema import Record

WORTHWHILE_RECORDS = 50
"""Fewer are drawn before a further process has started; that takes about 300 MiB."""

Outcome = Sequence[Path] | Exception
Drawing = tuple[str, "pd.DataFrame", Path, str]
"""What ``render`` takes."""


def draw_all(
    records: list[Record], folder: Path, width: str = "two", names: Sequence[str] = tuple(FIGURES)
) -> Generator[tuple[str, Outcome]]:
    """Draw figures from ``records``, which are let go; the name of each, when done, with its paths or what went wrong.

    A name comes once for each protocol. Figures without a record to draw are told in a line on stderr. Where the caller
    closes the iterator, or is interrupted, the second process ends at once, and neither leaves a part of a file. Raises
    ``UserError`` on a width that is none.
    """
    width_inches(width)
    with _helper(folder, len(records)) as helper:
        left: deque[Drawing] = deque()
        with bar(len(names), "making the tables of figures", unit="figures") as advance:
            for name in names:
                left.extend((name, part, folder, width) for part in _parts(name, records))
                advance(1, name)
        records.clear()  # the numbers of figures take far less memory
        with (
            _settled(),
            deferred(act=interrupt) as interrupted,
            bar(len(left), "drawing", unit="figures") as advance,
        ):
            for name, outcome in _drawn(left, helper, interrupted):
                yield name, outcome
                advance(1, name)


def _parts(name: str, records: Sequence[Record]) -> list[pd.DataFrame]:
    """The numbers of one figure by protocol; none where there is nothing to draw, which is said."""
    try:
        return [part for _, part in tabulate(name, records).groupby(SHEET, dropna=False)]
    except NothingToDrawError as error:
        say(str(error))
        return []


def _drawn(
    left: deque[Drawing], helper: _Helper | None, interrupted: Callable[[], bool]
) -> Iterator[tuple[str, Outcome]]:
    """Draw what is ``left`` in this process and in ``helper``; raise ``KeyboardInterrupt`` if ``interrupted``."""
    done = helper.draw(left) if helper else None
    while left or done:
        with suppress(IndexError):  # the helper may have taken the last one
            drawing = left.pop()
            outcome = _rendered(drawing)
            # A library may catch the KeyboardInterrupt, or raise another error while it cleans up.
            if interrupted():
                raise KeyboardInterrupt
            yield drawing[0], outcome
        while done and (not left or not done.empty()):
            answer = done.get()
            if answer is None:
                done = None
            else:
                yield answer


class _Helper:
    """A second process that draws. It loads its libraries from the start, while tables are still made."""

    def __init__(self) -> None:
        # Not forked: threads of numerical libraries do not survive that, and it would hold the records too.
        context = multiprocessing.get_context("spawn")
        self._connection, theirs = context.Pipe()
        self._process = context.Process(target=_serve, args=(theirs,), daemon=True)
        self._process.start()
        self._wanted = True
        theirs.close()

    def draw(self, left: deque[Drawing]) -> SimpleQueue[tuple[str, Outcome] | None]:
        """Have it draw from the front of ``left``, aside; what it has done appears in the queue, in the end None."""
        done: SimpleQueue[tuple[str, Outcome] | None] = SimpleQueue()
        threading.Thread(target=self._feed, args=(left, done), daemon=True).start()
        return done

    def _feed(self, left: deque[Drawing], done: SimpleQueue[tuple[str, Outcome] | None]) -> None:
        while left:
            with suppress(IndexError):  # the other process may have taken the last one
                drawing = left.popleft()
                try:
                    self._connection.send(drawing)
                    done.put((drawing[0], self._connection.recv()))
                except (EOFError, OSError):
                    left.appendleft(drawing)
                    if self._wanted:
                        self._process.join()
                        how = ended_by(self._process.exitcode or 0)
                        say(f"plot {drawing[0]}: the second process {how}; this one draws the rest alone")
                    break
        done.put(None)

    def end(self, folder: Path) -> None:
        """End it at once, and remove what it had begun to write."""
        self._wanted = False
        self._process.kill()
        self._process.join()
        if self._process.pid is not None:
            remove_unfinished(folder, self._process.pid)


@contextmanager
def _helper(folder: Path, records: int) -> Iterator[_Helper | None]:
    """A second process, None where it would not pay; it is gone when the context ends."""
    if records < WORTHWHILE_RECORDS or usable_cpus() < 2:
        yield None
        return
    helper = _Helper()
    try:
        yield helper
    finally:
        helper.end(folder)


@contextmanager
def _settled() -> Iterator[None]:
    """Spare the collector of garbage what is there to stay: it looks through all of it, time and again."""
    gc.collect()
    gc.freeze()
    try:
        yield
    finally:
        gc.unfreeze()


def _rendered(drawing: Drawing) -> Outcome:
    try:
        return render(*drawing)
    except UserError as error:
        return error
    except Exception as error:
        return RuntimeError(f"{type(error).__name__}: {error}")


def _serve(connection: Connection) -> None:
    """What the second process does: draw what it is sent, until nothing more can come."""
    # Ctrl-C reaches every process of the terminal: this one says nothing, its parent ends it and tidies up.
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    end_with_parent(signal.SIGKILL)
    for name in ("pandas", "matplotlib.backends.backend_agg", "matplotlib.backends.backend_pdf"):
        importlib.import_module(name)
    with suppress(EOFError), _settled():
        while True:
            connection.send(_rendered(connection.recv()))
