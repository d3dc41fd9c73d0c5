"""Checks of a prepared ListOps split."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING

import numpy as np

from lra_bench.contracts import UserError
from lra_bench.data.columns import ListColumn, numbers
from lra_bench.data.examples import digests_of

from .trees import LABEL, describe_rows, explain

if TYPE_CHECKING:
    import datasets


def check_examples(
    dataset: datasets.Dataset, where: str, window: tuple[int, int], others: Mapping[str, datasets.Dataset]
) -> None:
    """Raise ``UserError`` if an example has a wrong label or length, or occurs twice in this or another split.

    Args:
        dataset: The split.
        where: Name of the split, for messages.
        window: Lower and upper bound of the lengths, both exclusive.
        others: The other splits by name.
    """
    lengths, targets = ListColumn(dataset, "tokens").lengths, numbers(dataset, "target")
    values = describe_rows(dataset)[:, LABEL]
    for row in np.flatnonzero(values != targets):
        fault = explain(int(values[row]), int(targets[row]))
        raise UserError(
            f"{where}: row {row} is not a valid example: {fault}; remove the data (lra-bench clean --data --yes)"
        )
    for row in np.flatnonzero(lengths != numbers(dataset, "length")):
        raise UserError(f"{where}: row {row} has a wrong length; remove the data (lra-bench clean --data --yes)")
    low, high = window
    for row in np.flatnonzero((lengths <= low) | (lengths >= high)):
        raise UserError(
            f"{where}: row {row} has {lengths[row]:,} tokens, not between {low:,} and {high:,}; change task.window"
        )
    digests = digests_of(dataset)
    if repeated := len(dataset) - len(digests):
        raise UserError(f"{where}: {repeated:,} rows are duplicates; remove them from task.source")
    for name, other in others.items():
        if shared := len(digests & digests_of(other)):
            raise UserError(f"{where}: {shared:,} rows are also in {name}; remove them from task.source")
