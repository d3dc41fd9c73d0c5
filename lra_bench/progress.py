"""Progress of long steps: a bar on a terminal, a line now and then elsewhere, nothing where it is quick."""

from __future__ import annotations

import math
import os
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Protocol

from lra_bench.runtime.safe_text import printable

if TYPE_CHECKING:
    from rich.progress import Progress


Advance = Callable[[int], None]


class Tell(Protocol):
    """Tells a bar that ``n`` more are done, and what is being done now."""

    def __call__(self, n: int, doing: str = "", /) -> None:
        """Add ``n``, which may be 0."""


QUIET_SECONDS = 2.0
LINE_SECONDS = 10.0
REDRAW_SECONDS = 0.25

TERMINAL_COLUMNS = "LRA_BENCH_TERMINAL_COLUMNS"
"""The variable that tells a process whose stderr is passed on to a terminal how wide that is."""

_silent = False

_screen: Progress | None = None
"""What bars are drawn on while one is open, so that a bar within a bar stands below it."""


@contextmanager
def bar(total: int, description: str, start: int = 0, unit: str = "") -> Iterator[Tell]:
    """Show progress towards ``total``, from ``start``, with rate and time left.

    The context yields ``advance(n)``, and ``advance(n, doing)``.

    The bar appears after two seconds. Without a terminal a line is printed every ten seconds instead.
    """
    if _silent:
        yield lambda n, doing="", /: None
    elif on_terminal():
        yield from _live(total, description, start, unit)
    else:
        yield from _lines(total, description, start, unit)


def on_terminal() -> bool:
    """Whether bars can be drawn: stderr is a terminal, or is passed on to one."""
    return sys.stderr.isatty() or TERMINAL_COLUMNS in os.environ


def say(message: str) -> None:
    """One line on stderr that says what the program is doing or waiting for; control characters are replaced."""
    if not _silent:
        print(printable(message), file=sys.stderr, flush=True)  # noqa: T201


def silence() -> None:
    """Show no bars and say nothing from now on: another process does the same and tells of it."""
    global _silent
    _silent = True


def _lines(total: int, description: str, start: int, unit: str) -> Iterator[Tell]:
    done, began, spoken = start, time.monotonic(), time.monotonic() - LINE_SECONDS + QUIET_SECONDS

    def advance(n: int = 1, doing: str = "", /) -> None:
        nonlocal done, spoken
        done += n
        now = time.monotonic()
        if now - spoken < LINE_SECONDS:
            return
        spoken = now
        rate = (done - start) / (now - began)
        left = f", {(total - done) / rate:.0f} s left" if rate and done < total else ""
        doing = f"; {doing}" if doing else ""
        so_far = f"{done:,} of {total:,}{f' {unit}' if unit else ''}, {_pace(rate, unit)}"
        say(f"{description}: {so_far}{left}{doing}")

    yield advance


def _pace(rate: float, unit: str) -> str:
    """A rate in three digits: ``35.2 steps/s``; below one per second the time of an item: ``12.3 s/cell``."""
    if 0 < rate < 1:
        return f"{_three_digits(1 / rate)} s" + (f"/{unit.removesuffix('s')}" if unit else " each")
    return f"{_three_digits(rate)} {unit}/s".replace(" /s", "/s")


def _three_digits(number: float) -> str:
    digits = max(0, 2 - math.floor(math.log10(number))) if number > 0 else 0
    return f"{number:,.{digits}f}"


def _live(total: int, description: str, start: int, unit: str) -> Iterator[Tell]:
    global _screen
    outermost = _screen is None
    screen = _screen = _screen or _new_screen()
    description = printable(description)
    task = screen.add_task(description, total=total, completed=start, unit=unit, rate="", visible=False)
    began = shown = time.monotonic()
    done = 0

    def advance(n: int = 1, doing: str = "", /) -> None:
        nonlocal shown, done
        screen.advance(task, n)
        done += n
        now = time.monotonic()
        # Drawn from the caller's own thread, and seldom: a drawing thread would disturb what is being timed.
        if now - began > QUIET_SECONDS and now - shown > REDRAW_SECONDS:
            shown = now
            told = f"{description}: {printable(doing)}" if doing else description
            screen.update(task, visible=True, description=told, rate=_pace(done / (now - began), unit))
            screen.start()
            screen.refresh()

    try:
        yield advance
    finally:
        screen.remove_task(task)
        if outermost:
            _screen = None
            screen.stop()


def _new_screen() -> Progress:
    from rich.console import Console
    from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

    return Progress(
        TextColumn("{task.description}"),
        BarColumn(),
        MofNCompleteColumn(),
        TextColumn("{task.fields[unit]} {task.fields[rate]}"),
        TimeRemainingColumn(),
        console=Console(stderr=True, force_terminal=True, width=int(os.environ.get(TERMINAL_COLUMNS, 0)) or None),
        transient=True,
        auto_refresh=False,
    )
