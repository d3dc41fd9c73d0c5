"""Map errors to the statuses of records."""

from __future__ import annotations

from lra_bench.contracts import UserError
from lra_bench.runtime.hardware import first_line
from lra_bench.runtime.limits import TooSlow, is_out_of_memory


def status_of(error: Exception) -> tuple[str, str]:
    """Return status and reason of an error: ``incompatible``, ``timeout``, ``out_of_memory`` or ``failed``."""
    reason = first_line(error)
    if isinstance(error, UserError):
        return "incompatible", reason
    if isinstance(error, TooSlow):
        return "timeout", reason
    if is_out_of_memory(error):
        return "out_of_memory", reason
    return "failed", f"{type(error).__name__}: {reason}"
