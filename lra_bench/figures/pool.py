"""Figures drawn side by side, in processes of their own."""

from __future__ import annotations

import multiprocessing
import signal
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import ProcessPoolExecutor, as_completed
from pathlib import Path
from typing import TYPE_CHECKING

from lra_bench.contracts import UserError
from lra_bench.hardware import usable_cpus

from . import paint
from .variants import SHEET

if TYPE_CHECKING:
    import pandas as pd

PROCESSES = 2
"""Each takes about 250 MiB; more than two would be idle, for some figures take a large part of the whole."""
WORTHWHILE_ROWS = 2000
"""Of fewer rows the figures are drawn before further processes have started."""

Outcome = Sequence[Path] | Exception


def paint_all(tables: Mapping[str, pd.DataFrame], folder: Path, width: str = "two") -> Iterator[tuple[str, Outcome]]:
    """Draw figures from their numbers; the name of each, when it is done, with its paths or what went wrong.

    A name comes once for each protocol. Where the caller stops, or is interrupted, the processes end at once.
    """
    parts = [(name, part) for name, data in tables.items() for _, part in data.groupby(SHEET, dropna=False)]
    processes = min(PROCESSES, len(parts), usable_cpus())
    if processes < 2 or sum(map(len, tables.values())) < WORTHWHILE_ROWS:
        for name, part in parts:
            yield name, _painted(name, part, folder, width)
        return
    # Not forked: threads of numerical libraries do not survive that, and the records would count for each process.
    context = multiprocessing.get_context("spawn")
    executor = ProcessPoolExecutor(processes, context, initializer=_begin)
    try:
        names = {executor.submit(_painted, name, part, folder, width): name for name, part in parts}
        for future in as_completed(names):
            error = future.exception()  # of a process that was killed: all that were not done fail with it
            yield names[future], error if isinstance(error, Exception) else future.result()
    finally:
        executor.shutdown(wait=False, cancel_futures=True)
        for process in multiprocessing.active_children():
            process.terminate()


def _painted(name: str, part: pd.DataFrame, folder: Path, width: str) -> Outcome:
    try:
        return paint(name, part, folder, width)
    except UserError as error:
        return error
    except Exception as error:
        return RuntimeError(f"{type(error).__name__}: {error}")


def _begin() -> None:
    # Ctrl-C reaches every process of the terminal: a child that is drawing says nothing and ends.
    signal.signal(signal.SIGINT, signal.SIG_DFL)
