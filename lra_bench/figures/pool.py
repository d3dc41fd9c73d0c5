"""All figures at once, side by side: a second process draws while this one makes tables and draws too."""

from __future__ import annotations

import gc
import importlib
import multiprocessing
import signal
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import FIRST_COMPLETED, Future, ProcessPoolExecutor, wait
from concurrent.futures.process import BrokenProcessPool
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from lra_bench.child import end_with_parent
from lra_bench.contracts import UserError
from lra_bench.files import remove_unfinished
from lra_bench.hardware import usable_cpus
from lra_bench.progress import bar, say

from . import FIGURES, NothingToDrawError, paint, tabulate
from .style import width_inches
from .variants import SHEET

if TYPE_CHECKING:
    import pandas as pd

    from lra_bench.records.schema import Record

WORTHWHILE_RECORDS = 50
"""Fewer are drawn before a further process has started; that takes about 300 MiB."""

Outcome = Sequence[Path] | Exception


def draw_all(
    records: list[Record], folder: Path, width: str = "two", names: Sequence[str] = FIGURES
) -> Iterator[tuple[str, Outcome]]:
    """Draw figures from ``records``, which are let go; the name of each, when done, with its paths or what went wrong.

    A name comes once for each protocol. Figures without a record to draw are told in a line on stderr. Where the caller
    closes the iterator, or is interrupted, the second process ends at once, and neither leaves a part of a file. Raises
    ``UserError`` on a width that is none.
    """
    width_inches(width)
    with _helper(folder, len(records)) as helper:
        drawings = []
        with bar(len(names), "making the tables of figures", unit="figures") as advance:
            for name in names:
                for part in _parts(name, records):
                    drawings.append(_Drawing(name, part, helper and helper.submit(_painted, name, part, folder, width)))
                advance(1, name)
        records.clear()  # the numbers of figures take far less memory
        with _settled(), bar(len(drawings), "drawing", unit="figures") as advance:
            for name, outcome in _drawn(drawings, folder, width):
                yield name, outcome
                advance(1, name)


@dataclass
class _Drawing:
    """A figure of one protocol, and the helper's promise to draw it, where it gave one."""

    name: str
    part: pd.DataFrame
    promise: Future[Outcome] | None


class _Helper:
    """A second process that draws. Where it was killed, which is said once, it takes no more."""

    def __init__(self) -> None:
        # Not forked: threads of numerical libraries do not survive that, and it would hold the records too.
        self._executor = ProcessPoolExecutor(1, multiprocessing.get_context("spawn"), initializer=_begin)
        others = set(multiprocessing.active_children())
        self.submit(_warm)  # it loads its libraries while this process makes tables
        self._processes = set(multiprocessing.active_children()) - others

    def submit(self, function: Callable[..., Any], *arguments: Any) -> Future[Any] | None:
        """Its promise of a result, None where it was killed."""
        try:
            return self._executor.submit(function, *arguments)
        except BrokenProcessPool:
            return None

    def end(self, folder: Path) -> None:
        """End it at once, and remove what it had begun to write."""
        self._executor.shutdown(wait=False, cancel_futures=True)
        for process in self._processes:
            process.kill()
            process.join()
            remove_unfinished(folder, process.pid)


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


def _parts(name: str, records: Sequence[Record]) -> list[pd.DataFrame]:
    """The numbers of one figure by protocol; none where there is nothing to draw, which is said."""
    try:
        return [part for _, part in tabulate(name, records).groupby(SHEET, dropna=False)]
    except NothingToDrawError as error:
        say(str(error))
        return []


def _drawn(drawings: Sequence[_Drawing], folder: Path, width: str) -> Iterator[tuple[str, Outcome]]:
    """What the helper has drawn, and from the last on what it has not begun."""
    left, alone = list(drawings), False
    while left:
        promises = {each.promise for each in left if each.promise is not None}
        drawing = next((each for each in left if each.promise is not None and each.promise.done()), None)
        drawing = drawing or next((each for each in reversed(left) if not each.promise or each.promise.cancel()), None)
        if drawing is None:
            wait(promises, return_when=FIRST_COMPLETED)
            continue
        promise = drawing.promise
        if promise is None or promise.cancelled():
            left.remove(drawing)
            yield drawing.name, _painted(drawing.name, drawing.part, folder, width)
        elif isinstance(promise.exception(), BrokenProcessPool):
            drawing.promise = None
            if not alone:
                say("plot: the second process was killed, as by want of memory; this one draws alone what it left")
            alone = True
        else:
            left.remove(drawing)
            yield drawing.name, promise.result()


@contextmanager
def _settled() -> Iterator[None]:
    """Spare the collector of garbage what is there to stay: it looks through all of it, time and again."""
    gc.collect()
    gc.freeze()
    try:
        yield
    finally:
        gc.unfreeze()


def _painted(name: str, part: pd.DataFrame, folder: Path, width: str) -> Outcome:
    try:
        return paint(name, part, folder, width)
    except UserError as error:
        return error
    except Exception as error:
        return RuntimeError(f"{type(error).__name__}: {error}")


def _begin() -> None:
    # Ctrl-C reaches every process of the terminal: this one says nothing, its parent ends it and tidies up.
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    end_with_parent(signal.SIGKILL)


def _warm() -> None:
    for name in ("pandas", "matplotlib.backends.backend_agg", "matplotlib.backends.backend_pdf"):
        importlib.import_module(name)
    gc.collect()
    gc.freeze()
