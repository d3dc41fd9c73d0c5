"""The training loss, for every kind of task."""

from __future__ import annotations

import torch.nn.functional as F
from torch import Tensor

from lra_bench.contracts import NOT_SCORED, Batch, Output


def is_scored(targets: Tensor) -> Tensor:
    """Return which targets are scored; values are scored if they are numbers."""
    return ~targets.isnan() if targets.is_floating_point() else targets != NOT_SCORED


def scored_targets(batch: Batch) -> Tensor:
    """Return the number of scored targets of the batch, as a scalar tensor on its device."""
    return is_scored(batch.targets).sum()


def absolute_errors(output: Tensor, targets: Tensor) -> Tensor:
    """Return the absolute error of each value, with 0 for values that are not scored; the shape is that of targets."""
    scored = is_scored(targets)
    return (output - targets.masked_fill(~scored, 0)).abs().masked_fill(~scored, 0)


def objective(output: Output, batch: Batch, scored: Tensor | int | None = None, share: float = 1.0) -> Tensor:
    """Compute the mean loss over scored targets plus the auxiliary losses, a scalar.

    The loss of a target is the cross-entropy, or the absolute error if targets are values.

    For a micro-batch, ``scored`` is the number of scored targets of the full batch and ``share`` the micro-batch's
    fraction of its rows, so that the losses of all micro-batches add up to the loss of the batch.
    """
    total = scored if scored is not None else scored_targets(batch).clamp(min=1)
    logits = output.logits.float() if output.logits.dtype.itemsize < 4 else output.logits
    if batch.targets.is_floating_point():
        loss = absolute_errors(logits, batch.targets).sum()
    else:
        loss = F.cross_entropy(logits.flatten(0, -2), batch.targets.flatten(), ignore_index=NOT_SCORED, reduction="sum")
    loss = loss / total
    for auxiliary in output.losses.values():
        loss = loss + share * auxiliary
    return loss
