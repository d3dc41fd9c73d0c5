"""What glibc does with memory that a step frees, for a process that is timed and for one that is weighed."""

from __future__ import annotations

import ctypes
from contextlib import suppress

KEEPING_ALL = {"MALLOC_MMAP_MAX_": "0"}
"""Variables for processes that are timed, beside ``child.KEEPING_FREED``: blocks above 32 MiB are kept too.

Else such a block is handed back at every step, unless steps before left a hole of its size, and fetching its pages anew
takes longer than computing what goes into them: what was timed would depend on what the process did before. The
price is memory, in holes that are a little too small for the next block: training attention by ``math`` at 8,192 tokens
held 6.1 GB instead of 4.0.
"""

KEEPING_NOTHING = {"MALLOC_MMAP_THRESHOLD_": "65536", "MALLOC_TRIM_THRESHOLD_": "65536"}
"""Variables for processes that are weighed: large blocks go back as they are freed, so what is resident is alive."""


def hand_back() -> None:
    """Give the system what was freed and kept; nothing happens where the C library is another."""
    with suppress(OSError, AttributeError):
        ctypes.CDLL(None).malloc_trim(0)
