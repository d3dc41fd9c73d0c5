"""Fresh Python processes that find the same modules as their parent, and do not outlive it."""

from __future__ import annotations

import ctypes
import os
import signal
import sys
from collections.abc import Sequence
from contextlib import suppress

PR_SET_PDEATHSIG = 1
KEEPING_FREED = {"MALLOC_TRIM_THRESHOLD_": str(1 << 40), "MALLOC_MMAP_THRESHOLD_": str(32 << 20)}
"""Variables under which glibc keeps what is freed, blocks up to its largest threshold, for the next step to use.

By default it hands the end of the heap back whenever enough of it is free, which one process does at every step and its
twin never, as the order of their first allocations will have it: steps that differ by half.
"""


def environment(folder: str | None = None) -> dict[str, str]:
    """Environment variables for a child: ``folder``, the parent's import path, nothing found in the working folder.

    A clone's own folder must not shadow an installed package, hence ``PYTHONSAFEPATH``. Freed memory is kept
    (``KEEPING_FREED``) unless this process was started with other wishes.
    """
    path = [entry for entry in (folder, *sys.path) if entry]
    return {**KEEPING_FREED, **os.environ, "PYTHONSAFEPATH": "1", "PYTHONPATH": os.pathsep.join(path)}


def death(code: int) -> str:
    """How a process ended that left no word: killed, or crashed inside a library."""
    how = f"signal {-code}" if code < 0 else f"exit code {code}"
    known = " (the machine's memory ran out, or it was killed from outside)" if code == -signal.SIGKILL else ""
    return f"ended by {how}{known}"


def keep_to(cores: Sequence[int] | None) -> None:
    """Let this process and its children run on ``cores`` alone, where the system can; None means where they like."""
    if cores and hasattr(os, "sched_setaffinity"):
        os.sched_setaffinity(0, cores)


def end_with_parent(number: signal.Signals) -> None:
    """Have the kernel send this process ``number`` when its parent dies, however that dies; on Linux only."""
    with suppress(OSError, AttributeError):
        ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, number)
