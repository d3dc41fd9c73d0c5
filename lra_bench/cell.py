"""One cell, start to end: build, prepare, train, finish, test, profile, extrapolate, record."""

from __future__ import annotations

import json
import os
import shlex
import signal
import sys
import time
import traceback
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any

from lra_bench.child import end_with_parent, keep_to
from lra_bench.contracts import UserError
from lra_bench.files import why
from lra_bench.progress import say
from lra_bench.records.schema import FINISHED, CellKey, Record

if TYPE_CHECKING:
    from filelock import BaseFileLock

    from lra_bench.stages import Stages


@dataclass(frozen=True)
class Cell:
    """A cell of the grid: its key, its configuration, and what of it the user changed.

    ``position`` is set where the user chose it. ``config_dir`` was on the import path when it was composed.
    """

    key: CellKey
    config: dict[str, Any]
    overrides: tuple[str, ...]
    differences: dict[str, Any]
    modified: tuple[str, ...]
    position: str | None
    fingerprint: str
    config_dir: str | None = None

    @property
    def command(self) -> str:
        """The command that measures this cell again."""
        folder = ["--config-dir", self.config_dir] if self.config_dir else []
        return shlex.join(["lra-bench", "bench", *folder, *self.overrides])

    def as_json(self) -> str:
        """The cell as text, for a fresh process."""
        return json.dumps(asdict(self))

    @classmethod
    def from_json(cls, text: str) -> Cell:
        """The cell that ``as_json`` wrote."""
        raw = json.loads(text)
        return cls(
            **{
                **raw,
                "key": CellKey(**raw["key"]),
                "overrides": tuple(raw["overrides"]),
                "modified": tuple(raw["modified"]),
            }
        )


class TimeUp(Exception):
    """The cell's time limit was reached."""


def debugging() -> bool:
    """Whether ``--debug`` was asked for: only then is a stack trace shown."""
    return bool(os.environ.get("LRA_BENCH_DEBUG"))


def checkpoint_folder(key: CellKey) -> Path:
    """Where a cell keeps its checkpoints: under the cache, by its key."""
    from lra_bench.data.cache import Cache

    return Cache().root / "checkpoints" / key.folder() / f"seed{key.seed}"


def log_file(key: CellKey) -> Path:
    """Where a cell says what it does when others run beside it: under the cache, by its key."""
    from lra_bench.data.cache import Cache

    return Cache().root / "logs" / key.file("log")


def run(cell: Cell, results: Path, attempt: int) -> Record:
    """Measure a cell and write its record, whatever becomes of it; the record.

    A status tells how it ended. ``UserError`` passes through, for nothing was measured then.
    """
    from lra_bench.hardware import alone, resolve
    from lra_bench.records import environment, store
    from lra_bench.stages import Stages

    hardware = resolve(cell.config["hardware"])
    own = resolve(alone(cell.config["hardware"]))
    own.apply()
    record = blank_record(cell, attempt, environment.environment(hardware))
    folder = checkpoint_folder(cell.key)
    with holding(cell.key):
        if (done := measured_meanwhile(cell.key, results, attempt)) is not None:
            return done
        began = time.perf_counter()
        stages = Stages(record, cell.fingerprint, hardware, own, results, folder)
        try:
            record.status, record.reason = _guarded(stages)
            record.finished_at = _now()
            record.wall_seconds = time.perf_counter() - began
            store.keep_best(record, results, stages.curves, stages.predictions)
            if record.status in FINISHED:
                stages.checkpoints.forget_last()
        finally:
            stages.close()
    return record


def measured_meanwhile(key: CellKey, results: Path, attempt: int) -> Record | None:
    """The finished record of this attempt or a later one, which another process has made; None where there is none."""
    from lra_bench.records import store

    record = store.find(key, results)
    return record if record is not None and record.status in FINISHED and record.attempt >= attempt else None


@contextmanager
def holding(key: CellKey) -> Iterator[None]:
    """Keep other processes from the cell's checkpoints until the context ends."""
    from filelock import Timeout

    lock = _lock(key)
    try:
        lock.acquire(timeout=0)
    except Timeout:
        say(f"{key} is being measured by another process; waiting for it to end.")
        lock.acquire()
    try:
        yield
    finally:
        lock.release()


def claim(key: CellKey) -> BaseFileLock | None:
    """The right to start the cell, to be released when it has ended; None where another process has it or measures it.

    The lock of the cell itself is taken by its own process, seconds later.
    """
    from filelock import Timeout

    claimed, measuring = _lock(key, ".claim"), _lock(key)
    try:
        claimed.acquire(timeout=0)
        measuring.acquire(timeout=0)
    except Timeout:
        claimed.release()
        return None
    measuring.release()
    return claimed


def _lock(key: CellKey, suffix: str = ".lock") -> BaseFileLock:
    from filelock import FileLock

    folder = checkpoint_folder(key)
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise UserError(f"LRA_BENCH_CACHE: {folder} {why(error)}; set LRA_BENCH_CACHE to another folder") from error
    return FileLock(folder.with_suffix(suffix))


def _guarded(stages: Stages) -> tuple[str, str]:
    """Measure; the status that the outcome has, and its reason."""
    import torch

    from lra_bench.stages import Incompatible
    from lra_bench.training.meter import Diverged

    limit = stages.config["hardware"]["timeout_seconds"]
    try:
        with _time_limit(limit):
            stages.measure()
    except UserError:
        raise
    except Incompatible as error:
        return "incompatible", str(error)
    except Diverged as error:
        return "diverged", str(error)
    except TimeUp:
        return "timeout", f"{stages.stage}: hardware.timeout_seconds={limit} were over"
    except KeyboardInterrupt:
        return "interrupted", "stopped by a signal; the same command resumes"
    except (torch.cuda.OutOfMemoryError, MemoryError) as error:
        return "out_of_memory", f"{stages.stage}: {_first_line(error)}"
    except Exception as error:
        # torch raises a plain RuntimeError where the CPU's allocator finds no memory.
        if "can't allocate memory" in str(error):
            return "out_of_memory", f"{stages.stage}: {_first_line(error)}"
        if debugging():
            traceback.print_exc()
        return "failed", f"{stages.stage}: {type(error).__name__}: {_first_line(error)}"
    return "ok", ""


def blank_record(cell: Cell, attempt: int, machine: Any) -> Record:
    """The record of a cell before anything is measured; ``machine`` is its environment section."""
    from lra_bench.records.environment import code_version

    now = _now()
    return Record(
        status="interrupted",
        attempt=attempt,
        key=cell.key,
        variant={
            "label": str(cell.config["model"].get("label", cell.key.model)),
            "differences": cell.differences,
            "position": cell.position,
        },
        config=cell.config,
        protocol_modified=list(cell.modified),
        command=cell.command,
        started_at=now,
        finished_at=now,
        wall_seconds=None,
        code=code_version(),
        environment=machine,
    )


def _now() -> str:
    return datetime.now(UTC).isoformat(timespec="seconds")


def _first_line(error: BaseException) -> str:
    return (str(error).strip() or type(error).__name__).splitlines()[0]


@contextmanager
def _time_limit(seconds: int | None) -> Iterator[None]:
    """Raise ``TimeUp`` in this thread once ``seconds`` are over."""
    if not seconds:
        yield
        return

    def over(*_: object) -> None:
        raise TimeUp

    before = signal.signal(signal.SIGALRM, over)
    signal.setitimer(signal.ITIMER_REAL, seconds)
    try:
        yield
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, before)


EXIT_CODES = {"ok": 0, "incompatible": 0, "interrupted": 130}


def main() -> int:
    """Run the cell given as JSON on standard input; the exit code says how it ended."""
    request = json.load(sys.stdin)
    keep_to(request.get("cores"))
    signal.signal(signal.SIGTERM, signal.default_int_handler)
    end_with_parent(signal.SIGTERM)
    try:
        record = run(Cell.from_json(request["cell"]), Path(request["results"]), request["attempt"])
    except UserError as error:
        if debugging():
            raise
        say(f"lra-bench: {error}")
        return 2
    except KeyboardInterrupt:
        return 130
    return EXIT_CODES.get(record.status, 1)


if __name__ == "__main__":
    sys.exit(main())
