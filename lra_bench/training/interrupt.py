"""Ctrl-C and SIGTERM wait for the end of a step, or of a record, and are heeded once however often they are told."""

from __future__ import annotations

import math
import signal
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from types import FrameType
from typing import Any


class Stopped(KeyboardInterrupt):
    """Training ended after a step because of an interrupt, with its checkpoint written, on all ranks alike."""


ECHO_SECONDS = 0.5
"""Within this time signals are one wish to stop, told more than once.

Of one Ctrl-C a process hears from the terminal, or a cluster, which tells all processes, and from its parent. The death
of a parent the kernel tells again as each of its threads ends, some 10 ms apart.
"""

SIGNALS = (signal.SIGINT, signal.SIGTERM)

_heeded = [-math.inf]
"""When the last wish to stop was told first; signals belong to the process, whatever part of it listens."""


def _is_echo() -> bool:
    """Whether a signal that comes now tells what was heeded already; if not, it is heeded now."""
    now = time.monotonic()
    if now - _heeded[0] <= ECHO_SECONDS:
        return True
    _heeded[0] = now
    return False


def raise_once(*numbers: signal.Signals) -> None:
    """Let these signals raise ``KeyboardInterrupt``, once for one wish to stop."""

    def stop(number: int, frame: FrameType | None) -> None:
        if not _is_echo():
            raise KeyboardInterrupt

    for number in numbers:
        signal.signal(number, stop)


@contextmanager
def deferred(act: Callable[[int], None] = lambda number: None) -> Iterator[Callable[[], bool]]:
    """Yield a function that tells whether an interrupt came; the first calls ``act(number)``, a second ends at once."""
    if threading.current_thread() is not threading.main_thread():
        yield lambda: False
        return
    came = False
    before: dict[signal.Signals, Any] = {}

    def take_note(number: int, frame: FrameType | None) -> None:
        nonlocal came
        if _is_echo():
            return
        if came:
            raise KeyboardInterrupt
        came = True
        act(number)

    for each in SIGNALS:
        before[each] = signal.signal(each, take_note)
    try:
        yield lambda: came
    finally:
        for each, handler in before.items():
            signal.signal(each, handler)
