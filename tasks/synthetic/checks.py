"""Checks of a prepared split of a synthetic task."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from lra_bench.contracts import UserError
from lra_bench.data.columns import numbers
from lra_bench.data.examples import digests_of
from lra_bench.progress import bar

if TYPE_CHECKING:
    import datasets

    from .rows import Block

REMEDY = "remove the data (lra-bench clean --data --yes)"


def check_rows(
    dataset: datasets.Dataset,
    blocks: Iterable[Block],
    read: Callable[[Block], tuple[Block, NDArray[Any]]],
    where: str,
    length: int,
    others: Mapping[str, datasets.Dataset],
) -> None:
    """Raise ``UserError`` if an example is invalid, of another length, wrongly labelled or a duplicate.

    Args:
        dataset: The split.
        blocks: The examples of the split, in blocks.
        read: Function that computes targets and further columns from the tokens of a block, and whether each example is
            valid, (R,).
        where: Name of the split, for messages.
        length: Length of all examples in tokens.
        others: The other splits by name, in which no example may occur.
    """
    if (numbers(dataset, "length") != length).any():
        raise UserError(f"{where}: the column length is not {length:,} in all rows; {REMEDY}")
    first = 0
    with bar(len(dataset), f"checking {where}", unit="rows") as advance:
        for block in blocks:
            _check_block(block, first, read, where)
            first += len(block.tokens)
            advance(len(block.tokens))
    digests = digests_of(dataset)
    if repeated := len(dataset) - len(digests):
        raise UserError(f"{where}: {repeated:,} rows are duplicates; {REMEDY}")
    for name, other in others.items():
        if shared := len(digests & digests_of(other)):
            raise UserError(f"{where}: {shared:,} rows are also in {name}; {REMEDY}")


def _check_block(block: Block, first: int, read: Callable[[Block], tuple[Block, NDArray[Any]]], where: str) -> None:
    """Check one block, which begins with row ``first`` of the split."""
    expected, valid = read(block)
    for row in np.flatnonzero(~valid)[:1]:
        raise UserError(f"{where}: row {first + row} is not a valid example; {REMEDY}")
    wrong = (block.targets != expected.targets).reshape(len(valid), -1).any(axis=1)
    for row in np.flatnonzero(wrong)[:1]:
        raise UserError(f"{where}: row {first + row} has a wrong target; {REMEDY}")
    for name, column in expected.extra.items():
        for row in np.flatnonzero(block.extra[name] != column)[:1]:
            raise UserError(f"{where}: row {first + row} has a wrong {name}; {REMEDY}")
