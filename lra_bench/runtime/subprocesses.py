"""Environment, exit status and lifetime of Python subprocesses."""

from __future__ import annotations

import ctypes
import json
import os
import signal
import sys
import traceback
from collections.abc import Callable, Sequence
from contextlib import suppress
from pathlib import Path

PR_SET_PDEATHSIG = 1
KEEPING_FREED = {"MALLOC_TRIM_THRESHOLD_": str(1 << 40), "MALLOC_MMAP_THRESHOLD_": str(32 << 20)}
"""Environment variables under which glibc keeps freed blocks of up to 32 MiB, its largest threshold, for reuse.

By default glibc returns the end of the heap to the system when enough of it is free. Depending on the order of the
first allocations, that happens at every step in one process and never in another, and step times differ by half.
"""
PARENT = "LRA_BENCH_PARENT"
"""Environment variable with the process id of the parent."""
UNLISTED = "LRA_BENCH_IMPORT_PATH"
"""Environment variable with a JSON list of the folders of the import path whose names contain its separator."""
LAST_LINES = 20
"""Number of lines of a stack trace that are stored."""

FROM_OUTSIDE = (signal.SIGKILL, signal.SIGTERM, signal.SIGINT, signal.SIGHUP, signal.SIGQUIT)
"""Signals that are sent by the user or the system and not caused by the process itself."""


def environment(folder: str | None = None) -> dict[str, str]:
    """Return the environment variables of a child process, which finds the same modules as this process.

    The import path is that of this process, followed by ``folder``, if given. ``PYTHONSAFEPATH`` excludes the working
    folder, so that the folder of a clone does not shadow an installed package. ``KEEPING_FREED`` is set unless this
    process has other values of these variables.
    """
    path = [entry for entry in (*sys.path, folder) if entry]
    variables = {
        "PYTHONSAFEPATH": "1",
        "PYTHONPATH": os.pathsep.join(entry for entry in path if os.pathsep not in entry),
        UNLISTED: json.dumps([entry for entry in path if os.pathsep in entry]),
        PARENT: str(os.getpid()),
    }
    return {**KEEPING_FREED, **os.environ, **variables}


def complete_import_path() -> None:
    """Add the folders to the import path that the parent could not pass in ``PYTHONPATH``."""
    sys.path += [entry for entry in json.loads(os.environ.get(UNLISTED, "[]")) if entry not in sys.path]


def memory_kills() -> int | None:
    """Return how many processes the kernel has killed for memory since boot, or None if it does not report that."""
    try:
        lines = Path("/proc/vmstat").read_text(encoding="ascii").splitlines()
        return next(int(line.split()[1]) for line in lines if line.startswith("oom_kill "))
    except (OSError, StopIteration):
        return None


def ended_by(code: int) -> str:
    """Describe an exit code: ``ended by signal 9``, ``ended by exit code 1``."""
    return f"ended by signal {-code}" if code < 0 else f"ended by exit code {code}"


def status_of_exit(code: int, kills_before: int | None) -> tuple[str, str]:
    """Return the status and reason of a process that ended without reporting a result.

    Args:
        code: Exit code, negative for a signal.
        kills_before: Value of ``memory_kills`` before the process was started.

    Returns:
        ``interrupted`` if the process was killed from outside, ``out_of_memory`` if the kernel killed it for memory,
        otherwise ``failed``; and the reason in words.
    """
    how = ended_by(code)
    if code == -signal.SIGKILL and kills_before is not None and (memory_kills() or 0) > kills_before:
        return "out_of_memory", f"{how}: the machine's memory ran out"
    if -code in FROM_OUTSIDE:
        unknown = ", or for memory (not reported by this kernel)" if kills_before is None else ""
        return "interrupted", f"{how}, from outside{unknown}; the same command resumes"
    return "failed", how


def set_affinity(cores: Sequence[int] | None) -> None:
    """Restrict this process and its children to ``cores``; None for no restriction.

    Has no effect on systems without CPU affinity.
    """
    if cores and hasattr(os, "sched_setaffinity"):
        os.sched_setaffinity(0, cores)


def end_with_parent(number: signal.Signals) -> None:
    """Make the kernel send signal ``number`` to this process when its parent ends; on Linux only.

    If the parent, identified by the process id in ``PARENT``, has already ended, the signal is sent immediately.
    """
    with suppress(OSError, AttributeError):
        ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, number)
    parent = os.environ.get(PARENT)
    if parent and os.getppid() != int(parent):
        os.kill(os.getpid(), number)


def set_kill_preference(score: int) -> None:
    """Set the kernel's out-of-memory score (0 to 1000); processes with a higher score are killed first."""
    with suppress(OSError):
        Path("/proc/self/oom_score_adj").write_text(str(score), encoding="ascii")


def stage_reporter(descriptor: int | None) -> Callable[[str], None]:
    """Return a function that reports the name of the current stage to the parent.

    It writes to the pipe with that file descriptor; without one it has no effect.
    """

    def report(stage: str) -> None:
        if descriptor is not None:
            with suppress(OSError):  # the parent has closed the pipe
                os.write(descriptor, f"{stage}\n".encode())

    return report


def last_lines(error: BaseException) -> tuple[str, ...]:
    """Return the last ``LAST_LINES`` lines of an exception's stack trace, with paths relative to the import path."""
    trace = "".join(traceback.format_exception(error)).splitlines()
    return tuple(without_folders(line) for line in trace if line.strip())[-LAST_LINES:]


def without_folders(line: str) -> str:
    """Return ``line`` with file paths relative to the import path."""
    for folder in sorted({entry for entry in sys.path if len(entry) > 1}, key=len, reverse=True):
        line = line.replace(folder + os.sep, "")
    return line
