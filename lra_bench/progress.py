"""Progress bars: drawn on a terminal, printed as lines every ten seconds elsewhere, hidden for short steps."""

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
"""A function that advances a progress bar by n units."""


class ProgressCallback(Protocol):
    """A function that advances a progress bar and can change the description of the current operation."""

    def __call__(self, n: int, doing: str = "", /) -> None:
        """Advance the bar by ``n`` units, which may be 0; ``doing`` describes the current operation."""


QUIET_SECONDS = 2.0
"""Time before a bar appears."""

LINE_SECONDS = 10.0
"""Interval between lines if stderr is not a terminal."""

REDRAW_SECONDS = 0.25
"""Minimum interval between two drawings of a bar."""

TERMINAL_COLUMNS = "LRA_BENCH_TERMINAL_COLUMNS"
"""Environment variable with the width of the terminal, for a process whose stderr is passed on to a terminal."""

_silent = False

_screen: Progress | None = None
"""Display of the open bars; nested bars are drawn below each other on the same display."""


@contextmanager
def bar(total: int, description: str, start: int = 0, unit: str = "") -> Iterator[ProgressCallback]:
    """Show progress with rate and remaining time inside the context.

    The bar appears after ``QUIET_SECONDS``. Without a terminal a line is printed every ``LINE_SECONDS`` instead.

    Args:
        total: Number of units to be done.
        description: Label of the bar.
        start: Number of units already done.
        unit: Name of the units, in the plural.

    Yields:
        A function ``advance(n)`` or ``advance(n, doing)``, in which ``doing`` describes the current operation.
    """
    if _silent:
        yield lambda n, doing="", /: None
    elif on_terminal():
        yield from _terminal_bar(total, description, start, unit)
    else:
        yield from _printed_lines(total, description, start, unit)


def on_terminal() -> bool:
    """Return whether bars can be drawn: stderr is a terminal or is passed on to one."""
    return sys.stderr.isatty() or TERMINAL_COLUMNS in os.environ


def say(message: str) -> None:
    """Print a status message on stderr, with control characters replaced."""
    if not _silent:
        print(printable(message), file=sys.stderr, flush=True)  # noqa: T201


def silence() -> None:
    """Disable bars and messages in this process, because another process reports the same progress."""
    global _silent
    _silent = True


def _printed_lines(total: int, description: str, start: int, unit: str) -> Iterator[ProgressCallback]:
    done, began, printed = start, time.monotonic(), time.monotonic() - LINE_SECONDS + QUIET_SECONDS

    def advance(n: int = 1, doing: str = "", /) -> None:
        nonlocal done, printed
        done += n
        now = time.monotonic()
        if now - printed < LINE_SECONDS:
            return
        printed = now
        rate = (done - start) / (now - began)
        left = f", {(total - done) / rate:.0f} s left" if rate and done < total else ""
        doing = f"; {doing}" if doing else ""
        so_far = f"{done:,} of {total:,}{f' {unit}' if unit else ''}, {_pace(rate, unit)}"
        say(f"{description}: {so_far}{left}{doing}")

    yield advance


def _pace(rate: float, unit: str) -> str:
    """Format a rate to three digits: ``35.2 steps/s``, or the time per unit below one per second: ``12.3 s/cell``."""
    if 0 < rate < 1:
        return f"{_three_digits(1 / rate)} s" + (f"/{unit.removesuffix('s')}" if unit else " each")
    return f"{_three_digits(rate)} {unit}/s".replace(" /s", "/s")


def _three_digits(number: float) -> str:
    digits = max(0, 2 - math.floor(math.log10(number))) if number > 0 else 0
    return f"{number:,.{digits}f}"


def _terminal_bar(total: int, description: str, start: int, unit: str) -> Iterator[ProgressCallback]:
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
        # The caller's thread draws, at a low rate, because a drawing thread would disturb time measurements.
        if now - began > QUIET_SECONDS and now - shown > REDRAW_SECONDS:
            shown = now
            text = f"{description}: {printable(doing)}" if doing else description
            screen.update(task, visible=True, description=text, rate=_pace(done / (now - began), unit))
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
