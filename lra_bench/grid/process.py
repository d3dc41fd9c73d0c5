"""One cell in a process of its own, on its share of the machine."""

from __future__ import annotations

from contextlib import nullcontext
from pathlib import Path
from typing import IO

from lra_bench.cells.subprocess import Attempt
from lra_bench.contracts import UserError
from lra_bench.records.key import CellKey
from lra_bench.runtime.files import why

from .resources import Allocation
from .status import Planned


def start(planned: Planned, results: Path, allocation: Allocation, anew: bool) -> Attempt:
    """Start a cell in a fresh process, with the user's folder on its import path.

    One that is ``alone`` has the terminal; of several each writes to its own log, and Ctrl-C reaches it through us.
    """
    with nullcontext() if allocation.alone else _log(planned) as log:
        return Attempt(planned.cell, planned.attempt, results, anew, allocation.cores, allocation.cards, log)


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
