"""When the threads of this process have gone to sleep, so that who has the next turn does not share cores with them."""

from __future__ import annotations

import threading
import time
from contextlib import suppress
from pathlib import Path

LOOK_SECONDS = 0.001
LIMIT_SECONDS = 0.5  # Intel's OpenMP looks for work for 0.2 s by default


def wait_for_idle_threads(limit_seconds: float = LIMIT_SECONDS) -> None:
    """Wait until no other thread of this process runs, or ``limit_seconds`` have passed.

    Threads of OpenMP look for more work for a while before they sleep: GNU's for 12 to 20 ms on two virtual cores, by
    which the first step of the next process took longer. Where the system does not tell, as Linux does, nothing is
    waited for.
    """
    end = time.monotonic() + limit_seconds
    while _others_run() and time.monotonic() < end:
        time.sleep(LOOK_SECONDS)


def _others_run() -> bool:
    own = str(threading.get_native_id())
    return any(task.name != own and _runs(task) for task in Path("/proc/self/task").glob("*"))


def _runs(task: Path) -> bool:
    with suppress(OSError):  # it has ended
        return task.joinpath("stat").read_text().rpartition(") ")[2].startswith("R")
    return False
