"""Hold out validation rows from train; refuse incomplete data unless the user allows it."""

from __future__ import annotations

from typing import TYPE_CHECKING

from lra_bench.contracts import UserError

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

    from .columns import Integers


def hold_out(targets: NDArray[np.integer], rows: int, seed: int) -> tuple[Integers, Integers]:
    """Places of the rows that stay in train and of the ``rows`` that go to validation, each in ascending order.

    Every class gives in proportion to its size, to within one row: what a class owes is rounded by largest remainder.
    A pure function of ``targets`` and ``seed``. Raises ``ValueError`` unless 0 < ``rows`` < the rows there are.
    """
    import numpy as np

    if not 0 < rows < len(targets):
        raise ValueError(f"cannot hold {rows} of {len(targets)} rows out")
    classes, sizes = np.unique(targets, return_counts=True)
    owed = sizes * rows / len(targets)
    given = np.floor(owed).astype(np.int64)
    given[np.argsort(given - owed, kind="stable")[: rows - given.sum()]] += 1
    generator = np.random.Generator(np.random.PCG64(np.random.SeedSequence([seed])))
    out = np.zeros(len(targets), dtype=bool)
    for label, count in zip(classes, given, strict=True):
        members = np.flatnonzero(targets == label)
        out[generator.permutation(members)[:count]] = True
    return np.flatnonzero(~out), np.flatnonzero(out)


def require_whole(task: str, lacks: str, allow_partial: bool) -> None:
    """Raise ``UserError`` where ``lacks`` says that something is missing or lossy and the user did not allow that."""
    if lacks and not allow_partial:
        raise UserError(
            f"task={task}: the data is {lacks}; set task.allow_partial=true to use it all the same "
            "(records and tables will say so)"
        )
