"""Handle SIGINT and SIGTERM at the end of a step or record; repeated signals within 0.5 s count as one request."""

from __future__ import annotations

import math
import signal
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
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

_supervised = [False]
"""Whether a parent passes SIGINT on to this process, see ``raise_once``."""


def _is_echo(number: int) -> bool:
    """Whether a signal that comes now tells what was heeded already; if not, it is heeded now."""
    now = time.monotonic()
    passed_on = _supervised[0] and number == signal.SIGINT and _heeded[0] > -math.inf
    if passed_on or now - _heeded[0] <= ECHO_SECONDS:
        return True
    _heeded[0] = now
    return False


def raise_once(*numbers: signal.Signals) -> None:
    """Let these signals raise ``KeyboardInterrupt``, once for one wish to stop.

    For processes whose parent passes SIGINT on: after the first request SIGINT has no effect, however late it comes,
    since the parent itself kills the process on a second Ctrl-C. SIGTERM raises again.
    """
    _supervised[0] = True

    def stop(number: int, frame: FrameType | None) -> None:
        if not _is_echo(number):
            raise KeyboardInterrupt

    for number in numbers:
        signal.signal(number, stop)


@contextmanager
def blocked() -> Iterator[None]:
    """Block ``SIGNALS`` in this thread; processes started meanwhile inherit that until they call ``unblock``."""
    before = signal.pthread_sigmask(signal.SIG_BLOCK, SIGNALS)
    try:
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)


def ignore_all() -> None:
    """Ignore ``SIGNALS`` from now on, in a process that is ending: none is to change its exit code."""
    with suppress(ValueError):  # not in the main thread
        for number in SIGNALS:
            signal.signal(number, signal.SIG_IGN)
    # If KeyboardInterrupt has left a string that a library executed, as dataclasses does, Python ends with SIGINT
    # whatever the exit code, although the exception was caught. Executing another string resets this.
    exec("")


def unblock() -> None:
    """Deliver ``SIGNALS`` to this thread, pending ones now."""
    signal.pthread_sigmask(signal.SIG_UNBLOCK, SIGNALS)


def ignore(number: int) -> None:
    """Do nothing on a signal."""


def interrupt(number: int) -> None:
    """Raise ``KeyboardInterrupt`` on a signal."""
    raise KeyboardInterrupt


@contextmanager
def deferred(
    act: Callable[[int], None] = ignore, again: Callable[[int], None] = interrupt
) -> Iterator[Callable[[], bool]]:
    """Yield a function that tells whether a signal came; the first calls ``act(number)``, later ones ``again(number)``.

    Check it after the context too: a signal may come between the last check and the end.
    """
    if threading.current_thread() is not threading.main_thread():
        yield lambda: False
        return
    came = False
    before: dict[signal.Signals, Any] = {}

    def take_note(number: int, frame: FrameType | None) -> None:
        nonlocal came
        if _is_echo(number):
            return
        if came:
            again(number)
            return
        came = True
        act(number)

    for each in SIGNALS:
        before[each] = signal.signal(each, take_note)
    try:
        yield lambda: came
    finally:
        for each, handler in before.items():
            signal.signal(each, handler)
