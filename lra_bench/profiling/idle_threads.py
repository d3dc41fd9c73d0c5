"""Wait until the threads of this process are idle, so that they do not share cores with the process timed next."""

from __future__ import annotations

import threading
import time
from contextlib import suppress
from pathlib import Path

POLL_SECONDS = 0.001
LIMIT_SECONDS = 0.5  # threads of Intel's OpenMP spin for 0.2 s by default


def wait_for_idle_threads(limit_seconds: float = LIMIT_SECONDS) -> None:
    """Wait until no other thread of this process is running, or ``limit_seconds`` have passed.

    Threads of OpenMP spin before they sleep: GNU's for 12 to 20 ms on two virtual cores, which made the first step of
    the next process longer by that time. Returns immediately on systems without ``/proc``, that is, outside Linux.
    """
    end = time.monotonic() + limit_seconds
    while _other_threads_run() and time.monotonic() < end:
        time.sleep(POLL_SECONDS)


def _other_threads_run() -> bool:
    """Return whether a thread of this process other than the current one is running."""
    own = str(threading.get_native_id())
    return any(task.name != own and _is_running(task) for task in Path("/proc/self/task").glob("*"))


def _is_running(task: Path) -> bool:
    """Return whether a thread, a folder of ``/proc/self/task``, is in the state running."""
    with suppress(OSError):  # the thread has ended
        return task.joinpath("stat").read_text().rpartition(") ")[2].startswith("R")
    return False
