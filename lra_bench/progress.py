"""Progress bars: drawn on a terminal, one line in a notebook, a line every ten seconds elsewhere; none for short steps.

A child process passes its bars on through its stderr, see ``child_variables`` and ``Forwarded``.
"""

from __future__ import annotations

import codecs
import importlib
import math
import os
import re
import shutil
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, Protocol

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

REPLACED_LINES = "LRA_BENCH_REPLACED_LINES"
"""Environment variable that makes a process print a bar as lines that end in a carriage return, each time it changes.

The parent replaces the line of a notebook by them. An empty line removes it.
"""

_silent = False

_notebook_line: Any = None
"""Handle of the line that a notebook shows for the open bars."""

_screen: Progress | None = None
"""Display of the open bars; nested bars are drawn below each other on the same display."""


@contextmanager
def bar(total: int, description: str, start: int = 0, unit: str = "") -> Iterator[ProgressCallback]:
    """Show progress with rate and remaining time inside the context.

    The bar appears after ``QUIET_SECONDS``. In a notebook it is a line of text. Without a terminal or a notebook a line
    is printed every ``LINE_SECONDS`` instead.

    Args:
        total: Number of units to be done; 0 if it is unknown.
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


def in_notebook() -> bool:
    """Return whether this process is the kernel of a notebook."""
    get_shell = getattr(sys.modules.get("IPython"), "get_ipython", None)
    return get_shell is not None and hasattr(get_shell(), "kernel")


def child_variables() -> dict[str, str]:
    """Return the environment variables with which a child process draws its bars as this process does."""
    if in_notebook():
        return {REPLACED_LINES: "1"}
    return {TERMINAL_COLUMNS: str(shutil.get_terminal_size().columns)} if on_terminal() else {}


class Forwarded:
    """A file for the bytes that a child process writes to stderr; they are shown where messages of this process are.

    In a notebook, and wherever else ``sys.stderr`` was replaced, that is not the file descriptor of stderr.
    """

    def __init__(self) -> None:
        self._stream = sys.stderr
        self._decoder = codecs.getincrementaldecoder("utf-8")("replace")
        self._rest = ""

    def write(self, data: bytes) -> None:
        """Show the lines that are complete."""
        *lines, self._rest = re.split(r"(?<=[\r\n])", self._rest + self._decoder.decode(data))
        for line in lines:
            if line.endswith("\r") and in_notebook():
                _replace_line(line[:-1])
            else:
                self._stream.write(line)
        self._stream.flush()

    def close(self) -> None:
        """Display the last line, even if it does not end with a newline."""
        self.write(b"\n" if self._rest else b"")


def _replace_line(text: str) -> None:
    """Show a line instead of the one shown before: in a notebook, or in that of the parent."""
    global _notebook_line
    if not in_notebook():
        print(text, end="\r", file=sys.stderr, flush=True)  # noqa: T201
    elif _notebook_line is None and text:
        display = importlib.import_module("IPython.display").display
        _notebook_line = display({"text/plain": text}, raw=True, display_id=True)
    elif _notebook_line is not None:
        _notebook_line.update({"text/plain": text}, raw=True)
        _notebook_line = _notebook_line if text else None  # the next bar may be of another cell of the notebook


def say(message: str) -> None:
    """Print a status message on stderr, with control characters replaced."""
    if not _silent:
        print(printable(message), file=sys.stderr, flush=True)  # noqa: T201


def silence() -> None:
    """Disable bars and messages in this process, because another process reports the same progress."""
    global _silent
    _silent = True


def _printed_lines(total: int, description: str, start: int, unit: str) -> Iterator[ProgressCallback]:
    replaced = in_notebook() or REPLACED_LINES in os.environ
    interval = REDRAW_SECONDS if replaced else LINE_SECONDS
    done, began, printed = start, time.monotonic(), time.monotonic() - interval + QUIET_SECONDS
    shown = False

    def advance(n: int = 1, doing: str = "", /) -> None:
        nonlocal done, printed, shown
        done += n
        now = time.monotonic()
        if now - printed < interval:
            return
        printed, shown = now, True
        rate = (done - start) / (now - began)
        left = f", {(total - done) / rate:.0f} s left" if rate and done < total else ""
        doing = f"; {doing}" if doing else ""
        of_total, units = f" of {total:,}" if total else "", f" {unit}" if unit else ""
        so_far = f"{done:,}{of_total}{units}, {_pace(rate, unit)}"
        line = f"{description}: {so_far}{left}{doing}"
        if replaced:
            _replace_line(printable(line))
        else:
            say(line)

    try:
        yield advance
    finally:
        if replaced and shown:
            _replace_line("")


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
    task = screen.add_task(description, total=total or None, completed=start, unit=unit, rate="", visible=False)
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
