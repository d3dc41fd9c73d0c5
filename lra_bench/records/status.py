"""Map errors to the statuses of records."""

from __future__ import annotations

import traceback

from lra_bench.contracts import UserError
from lra_bench.runtime.hardware import first_line
from lra_bench.runtime.limits import TooSlow, debugging, is_out_of_memory


def failure(error: BaseException) -> tuple[str, str]:
    """Return the status of an error that ends a measurement or a part of it, and its first line.

    The status is ``incompatible``, ``timeout``, ``out_of_memory`` or ``failed``; with ``--debug`` the trace of an error
    with the last one is printed.
    """
    if isinstance(error, UserError):
        status = "incompatible"
    elif isinstance(error, TooSlow):
        status = "timeout"
    else:
        status = "out_of_memory" if is_out_of_memory(error) else "failed"
    if status == "failed" and debugging():
        traceback.print_exception(error)
    return status, first_line(error)


def status_of(error: BaseException) -> tuple[str, str]:
    """Return status and reason of an error as ``failure``, with the class if the status is ``failed``."""
    status, reason = failure(error)
    return status, f"{type(error).__name__}: {reason}" if status == "failed" else reason
