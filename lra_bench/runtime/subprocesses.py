"""Fresh Python processes that find the same modules as their parent, and do not outlive it."""

from __future__ import annotations

import ctypes
import os
import signal
import sys
import traceback
from collections.abc import Callable, Sequence
from contextlib import suppress
from pathlib import Path

PR_SET_PDEATHSIG = 1
KEEPING_FREED = {"MALLOC_TRIM_THRESHOLD_": str(1 << 40), "MALLOC_MMAP_THRESHOLD_": str(32 << 20)}
"""Variables under which glibc keeps what is freed, blocks up to its largest threshold, for the next step to use.

By default it hands the end of the heap back whenever enough of it is free, which one process does at every step and its
twin never, as the order of their first allocations will have it: steps that differ by half.
"""
PARENT = "LRA_BENCH_PARENT"
LAST_LINES = 20

FROM_OUTSIDE = (signal.SIGKILL, signal.SIGTERM, signal.SIGINT, signal.SIGHUP, signal.SIGQUIT)
"""Signals that a process does not bring on itself."""


def environment(folder: str | None = None) -> dict[str, str]:
    """Environment variables for a child: ``folder``, the parent's import path, nothing found in the working folder.

    A clone's own folder must not shadow an installed package, hence ``PYTHONSAFEPATH``. Freed memory is kept
    (``KEEPING_FREED``) unless this process was started with other wishes.
    """
    path = [entry for entry in (folder, *sys.path) if entry]
    path_list = os.pathsep.join(path)
    return {**KEEPING_FREED, **os.environ, "PYTHONSAFEPATH": "1", "PYTHONPATH": path_list, PARENT: str(os.getpid())}


def memory_kills() -> int | None:
    """How many processes the kernel has killed for memory since the machine started, None where it does not say."""
    try:
        lines = Path("/proc/vmstat").read_text(encoding="ascii").splitlines()
        return next(int(line.split()[1]) for line in lines if line.startswith("oom_kill "))
    except (OSError, StopIteration):
        return None


def ended_by(code: int) -> str:
    """By what a process ended that left no word."""
    return f"ended by signal {-code}" if code < 0 else f"ended by exit code {code}"


def status_of_exit(code: int, kills_before: int | None) -> tuple[str, str]:
    """Status and reason for a process that ended without a word, where ``memory_kills`` was ``kills_before``.

    Killed from outside is ``interrupted``, killed for memory is ``out_of_memory``, a crash is ``failed``.
    """
    how = ended_by(code)
    if code == -signal.SIGKILL and kills_before is not None and (memory_kills() or 0) > kills_before:
        return "out_of_memory", f"{how}: the machine's memory ran out"
    if -code in FROM_OUTSIDE:
        unknown = ", or for memory, which the kernel does not tell here" if kills_before is None else ""
        return "interrupted", f"{how}, from outside{unknown}; the same command resumes"
    return "failed", how


def set_affinity(cores: Sequence[int] | None) -> None:
    """Let this process and its children run on ``cores`` alone, where the system can; None means where they like."""
    if cores and hasattr(os, "sched_setaffinity"):
        os.sched_setaffinity(0, cores)


def end_with_parent(number: signal.Signals) -> None:
    """Have the kernel send this process ``number`` when its parent dies, however that dies; on Linux only.

    A parent that has died already is known by its number, which ``environment`` passes on.
    """
    with suppress(OSError, AttributeError):
        ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, number)
    parent = os.environ.get(PARENT)
    if parent and os.getppid() != int(parent):
        os.kill(os.getpid(), number)


def set_kill_preference(score: int) -> None:
    """Let the kernel, when memory runs out, take this process before those of a lower score (0 to 1000)."""
    with suppress(OSError):
        Path("/proc/self/oom_score_adj").write_text(str(score), encoding="ascii")


def stage_reporter(descriptor: int | None) -> Callable[[str], None]:
    """A function that tells the parent which stage begins, through the pipe of that descriptor, if any."""

    def report(stage: str) -> None:
        if descriptor is not None:
            with suppress(OSError):  # nobody listens any more
                os.write(descriptor, f"{stage}\n".encode())

    return report


def last_lines(error: BaseException) -> tuple[str, ...]:
    """The end of an exception's trace, in which files are named by their place on the import path."""
    told = "".join(traceback.format_exception(error)).splitlines()
    return tuple(without_folders(line) for line in told if line.strip())[-LAST_LINES:]


def without_folders(line: str) -> str:
    """A line in which files are named by their place on the import path."""
    for folder in sorted({entry for entry in sys.path if len(entry) > 1}, key=len, reverse=True):
        line = line.replace(folder + os.sep, "")
    return line
