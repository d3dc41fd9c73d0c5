"""Examples of a split for the calibration of a trained network."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np
import torch

from lra_bench.contracts import Batch, TaskSpec

BATCH = 32


def spread_batches(rows: Any, spec: TaskSpec, most: int, device: torch.device) -> Iterator[Batch]:
    """Yield batches of at most ``most`` examples that are evenly spread over a split.

    In language modelling an example is a window of the training length; windows do not overlap.

    Args:
        rows: The split, a ``Rows`` of ``lra_bench.data.batches``.
        spec: Specification of the task.
        most: Largest number of examples.
        device: Device of the batches.
    """
    if spec.kind != "language_modeling":
        chosen = _spread(len(rows), most)
        chosen = chosen[np.argsort(rows.row_lengths[chosen], kind="stable")]
        for start in range(0, len(chosen), BATCH):
            yield rows.batch(chosen[start : start + BATCH]).to(device)
        return
    length = min(spec.train_length, int(rows.lengths.max()) - 1)
    windows = [
        (document, start)
        for document, size in enumerate(rows.lengths.tolist())
        for start in range(0, size - length, length)
    ]
    chosen = _spread(len(windows), most)
    for first in range(0, len(chosen), BATCH):
        texts = np.stack(
            [
                rows.row(document)[start : start + length + 1]
                for document, start in (windows[each] for each in chosen[first : first + BATCH].tolist())
            ]
        )
        text = torch.from_numpy(texts.astype(np.int64))
        yield Batch(torch.full((len(text),), length), text[:, 1:], tokens=text[:, :-1]).to(device)


def _spread(count: int, most: int) -> Any:
    """Return at most ``most`` indices below ``count``, evenly spread."""
    return np.unique(np.linspace(0, count - 1, min(count, most)).round().astype(np.int64))
