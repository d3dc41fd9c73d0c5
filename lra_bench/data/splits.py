"""Hold out validation examples from the training data; refuse incomplete data unless the user allows it."""

from __future__ import annotations

from typing import TYPE_CHECKING

from lra_bench.contracts import UserError

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

    from .columns import Integers


def hold_out(targets: NDArray[np.integer], rows: int, seed: int) -> tuple[Integers, Integers]:
    """Split examples into training and validation, stratified by class.

    The number of validation examples of a class is proportional to its size, rounded by the largest-remainder method.
    The split is a pure function of ``targets`` and ``seed``.

    Args:
        targets: Class of each example, (R,).
        rows: Number of validation examples.
        seed: Seed of the random selection.

    Returns:
        Indices of the training and of the validation examples, each in ascending order.

    Raises:
        ValueError: Unless 0 < ``rows`` < R.
    """
    import numpy as np

    if not 0 < rows < len(targets):
        raise ValueError(f"cannot hold out {rows} of {len(targets)} rows")
    classes, sizes = np.unique(targets, return_counts=True)
    exact_counts = sizes * rows / len(targets)
    counts = np.floor(exact_counts).astype(np.int64)
    counts[np.argsort(counts - exact_counts, kind="stable")[: rows - counts.sum()]] += 1
    generator = np.random.Generator(np.random.PCG64(np.random.SeedSequence([seed])))
    held_out = np.zeros(len(targets), dtype=bool)
    for label, count in zip(classes, counts, strict=True):
        members = np.flatnonzero(targets == label)
        held_out[generator.permutation(members)[:count]] = True
    return np.flatnonzero(~held_out), np.flatnonzero(held_out)


UNOFFICIAL = "not that of the official files"
"""How data is described that has as many examples as the official files and another content."""

UNVERIFIED = "not verified, as no checksum of the release is published"
"""How data is described that has as many examples as a release whose content cannot be verified."""


def require_whole(task: str, lacks: str, allow_partial: bool) -> None:
    """Raise ``UserError`` if data is incomplete or lossy and the user did not allow that.

    Args:
        task: Name of the task.
        lacks: Description of missing or lossy data; empty if there is none.
        allow_partial: ``task.allow_partial``.
    """
    if lacks and not allow_partial:
        raise UserError(
            f"task={task}: the data is {lacks}; set task.allow_partial=true to use it anyway "
            "(records and tables will state this)"
        )
