"""What a prepared synthetic split is held against."""

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
    """Raise ``UserError`` at the first row that is malformed, of another length, wrongly labelled, or not the only one
    of its tokens; ``read`` says what targets and further columns must be.
    """
    if (numbers(dataset, "length") != length).any():
        raise UserError(f"{where}: not all rows state their length of {length:,} tokens; {REMEDY}")
    first = 0
    with bar(len(dataset), f"checking {where}", unit="rows") as advance:
        for block in blocks:
            _check_block(block, first, read, where)
            first += len(block.tokens)
            advance(len(block.tokens))
    digests = digests_of(dataset)
    if repeated := len(dataset) - len(digests):
        raise UserError(f"{where}: {repeated:,} rows repeat others; {REMEDY}")
    for name, other in others.items():
        if shared := len(digests & digests_of(other)):
            raise UserError(f"{where}: {shared:,} rows occur in {name} too; {REMEDY}")


def _check_block(block: Block, first: int, read: Callable[[Block], tuple[Block, NDArray[Any]]], where: str) -> None:
    """The rows of one block, of which the first is row ``first`` of the split."""
    expected, well_formed = read(block)
    for row in np.flatnonzero(~well_formed)[:1]:
        raise UserError(f"{where}: row {first + row} is no example of the task; {REMEDY}")
    wrong = (block.targets != expected.targets).reshape(len(well_formed), -1).any(axis=1)
    for row in np.flatnonzero(wrong)[:1]:
        raise UserError(f"{where}: row {first + row} has a wrong target; {REMEDY}")
    for name, column in expected.extra.items():
        for row in np.flatnonzero(block.extra[name] != column)[:1]:
            raise UserError(f"{where}: row {first + row} has a wrong {name}; {REMEDY}")
