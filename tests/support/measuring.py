"""Run one measurement outside a cell."""

from types import SimpleNamespace

from lra_bench.config.schema import Measure
from lra_bench.measurements.subject import Context


def section(
    measurement,
    task,
    model=None,
    *,
    hardware=None,
    batch_size=1,
    attempt=1,
    test=None,
    rows=None,
    own_score=None,
    **options,
):
    """Return the section of a measurement with these options, None if it does not apply."""
    measure = Measure(**options)
    subject = SimpleNamespace(
        config=SimpleNamespace(measure=measure), task=task, model=model, test=test, own_score=own_score, rows=rows
    )
    return measurement(measure).measure(subject, Context(hardware, hardware, attempt, batch_size, lambda: None))
