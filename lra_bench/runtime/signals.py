"""Handling of SIGINT and SIGTERM: deferred to the end of a step or record; signals within 0.5 s are one request."""

from __future__ import annotations

import math
import os
import signal
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from traceback import walk_stack
from types import FrameType
from typing import Any


class Stopped(KeyboardInterrupt):
    """Training was stopped by a signal after a step, on all ranks at the same step, and its checkpoint is written."""


ECHO_SECONDS = 0.5
"""Time within which repeated signals count as one request to stop.

After one Ctrl-C a process can receive a signal from the terminal or the cluster, one from its parent, and one per
thread of the parent when that ends.
"""

SIGNALS = (signal.SIGINT, signal.SIGTERM)

_last_request = [-math.inf]
"""Time of the last request to stop, shared by all handlers of the process."""

_supervised = [False]
"""Whether a parent passes SIGINT on to this process, see ``raise_once``."""


def _is_repeated(number: int) -> bool:
    """Return whether a signal repeats an earlier request; otherwise store the current time as a new request."""
    now = time.monotonic()
    passed_on = _supervised[0] and number == signal.SIGINT and _last_request[0] > -math.inf
    if passed_on or now - _last_request[0] <= ECHO_SECONDS:
        return True
    _last_request[0] = now
    return False


def raise_once(*numbers: signal.Signals) -> None:
    """Raise ``KeyboardInterrupt`` on these signals, once per request to stop.

    For processes whose parent passes SIGINT on. After the first request, SIGINT is ignored, because the parent kills
    the process on a second Ctrl-C. SIGTERM raises again after ``ECHO_SECONDS``. See also ``raise_if_ignored``.
    """
    _supervised[0] = True
    raise_if_ignored()

    def stop(number: int, frame: FrameType | None) -> None:
        if not _is_repeated(number):
            raise KeyboardInterrupt

    for number in numbers:
        signal.signal(number, stop)


def raise_if_ignored() -> None:
    """Install a hook that raises ``KeyboardInterrupt`` again if Python ignored it in a finalizer or callback.

    The handler of SIGTERM must raise ``KeyboardInterrupt``. A hook that is already installed is kept.
    """
    if sys.unraisablehook is sys.__unraisablehook__:
        sys.unraisablehook = _raise_again


def _raise_again(ignored: Any) -> None:
    """Raise a ``KeyboardInterrupt`` that Python ignored again; print other ignored exceptions."""
    if ignored.exc_type is not KeyboardInterrupt:
        sys.__unraisablehook__(ignored)
        return
    with blocked():  # the new thread inherits the mask, so that the main thread receives the signal
        threading.Thread(target=_send_after_hook, daemon=True).start()
        _last_request[0] = -math.inf


def _send_after_hook() -> None:
    """Wait until the main thread has left ``_raise_again``, where exceptions are ignored, and send SIGTERM."""
    thread = threading.main_thread().ident or 0
    while any(each.f_code is _raise_again.__code__ for each, _ in walk_stack(sys._current_frames()[thread])):
        time.sleep(0.001)
    os.kill(os.getpid(), signal.SIGTERM)


@contextmanager
def blocked() -> Iterator[None]:
    """Block ``SIGNALS`` in this thread; processes started inside the context inherit it until they call ``unblock``."""
    before = signal.pthread_sigmask(signal.SIG_BLOCK, SIGNALS)
    try:
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)


def ignore_all() -> None:
    """Ignore ``SIGNALS`` from now on, so that they do not change the exit code of a process that is ending."""
    with suppress(ValueError):  # not in the main thread
        for number in SIGNALS:
            signal.signal(number, signal.SIG_IGN)
    # If KeyboardInterrupt was raised in code run by exec, as dataclasses does, Python exits with SIGINT instead of the
    # exit code, even though the exception was caught. Another call of exec resets this state.
    exec("")


def unblock(*numbers: signal.Signals) -> None:
    """Unblock signals, by default ``SIGNALS``, in this thread; pending signals are delivered immediately."""
    signal.pthread_sigmask(signal.SIG_UNBLOCK, numbers or SIGNALS)


def ignore(number: int) -> None:
    """Ignore a signal."""


def interrupt(number: int) -> None:
    """Raise ``KeyboardInterrupt`` on a signal."""
    raise KeyboardInterrupt


@contextmanager
def deferred(
    act: Callable[[int], None] = ignore, again: Callable[[int], None] = interrupt
) -> Iterator[Callable[[], bool]]:
    """Defer ``SIGNALS`` inside the context; outside the main thread signals are not handled.

    Args:
        act: Called with the signal number on the first request to stop.
        again: Called with the signal number on each further request.

    Yields:
        A function that returns whether a signal was received. Call it after the context as well, since a signal may
        be received after the last check inside it.
    """
    if threading.current_thread() is not threading.main_thread():
        yield lambda: False
        return
    received = False
    before: dict[signal.Signals, Any] = {}

    def handle(number: int, frame: FrameType | None) -> None:
        nonlocal received
        if _is_repeated(number):
            return
        if received:
            again(number)
            return
        received = True
        act(number)

    for signal_number in SIGNALS:
        before[signal_number] = signal.signal(signal_number, handle)
    try:
        yield lambda: received
    finally:
        for signal_number, handler in before.items():
            signal.signal(signal_number, handler)
