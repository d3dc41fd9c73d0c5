"""Choose between the two forms of a kernel: for CPUs, and for GPUs, where launches and memory traffic cost most."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from torch import Tensor

CPU_TYPES = ("cpu", "meta")
"""Types of devices on which the form for CPUs runs; on the meta device, FLOPs are counted as on a CPU."""

_forced = False


def uses_gpu_form(x: Tensor) -> bool:
    """Return whether the form for GPUs runs for ``x``: on every device except CPUs and the meta device.

    Call it outside functions that the backward pass recomputes, which might run after ``gpu_forms`` ends.
    """
    return _forced or x.device.type not in CPU_TYPES


@contextmanager
def gpu_forms() -> Iterator[None]:
    """Run the forms for GPUs on every device inside the context, for tests; affects all threads."""
    global _forced
    before, _forced = _forced, True
    try:
        yield
    finally:
        _forced = before
