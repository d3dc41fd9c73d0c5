"""Ctrl-C and SIGTERM wait for the end of a training step, so that a checkpoint can be written."""

from __future__ import annotations

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
"""One Ctrl-C may come twice: from the terminal, or a cluster, which tells all processes, and from a parent."""

SIGNALS = (signal.SIGINT, signal.SIGTERM)


@contextmanager
def deferred(act: Callable[[int], None] = lambda number: None) -> Iterator[Callable[[], bool]]:
    """Yield a function that tells whether an interrupt came; the first calls ``act(number)``, a second ends at once."""
    if threading.current_thread() is not threading.main_thread():
        yield lambda: False
        return
    came: float | None = None
    before: dict[signal.Signals, Any] = {}

    def take_note(number: int, frame: FrameType | None) -> None:
        nonlocal came
        now = time.monotonic()
        if came is None:
            came = now
        elif now - came > ECHO_SECONDS:
            raise KeyboardInterrupt
        else:
            return
        act(number)

    for each in SIGNALS:
        before[each] = signal.signal(each, take_note)
    try:
        yield lambda: came is not None
    finally:
        for each, handler in before.items():
            signal.signal(each, handler)
