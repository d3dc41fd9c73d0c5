"""What prepared reviews are held against."""

from __future__ import annotations

import codecs
from collections.abc import Mapping
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from lra_bench.contracts import UserError
from lra_bench.data.columns import Integers, ListColumn, numbers

from .bytes import texts_of, to_bytes

if TYPE_CHECKING:
    import datasets

    from .corpus import Corpus

# The official files, counted: reviews of a split that repeat an earlier one, and test reviews that train holds too.
OFFICIAL_REPEATS = {"train": 96, "test": 199}
OFFICIAL_SHARED = 123
LARGEST_SHARE = 0.6


def check_rows(dataset: datasets.Dataset, where: str, max_length: int, pairs: bool = False) -> None:
    """Raise ``UserError`` at the first row that is no cut UTF-8 text, and unless labels are 0 and 1 and balanced."""
    column, remove = ListColumn(dataset, "tokens", documents=pairs), "remove the data (lra-bench clean --data --yes)"
    longest = column.lengths.max(axis=1) if pairs else column.lengths
    if len(wrong := np.flatnonzero((longest != numbers(dataset, "length")) | (longest > max_length))):
        raise UserError(f"{where}: row {wrong[0]} states a wrong length or is too long; {remove}")
    for row in range(len(column)):
        for text in texts_of(column, row, max_length):
            if fault := text_fault(text):
                raise UserError(f"{where}: row {row} {fault}; {remove}")
    check_labels(numbers(dataset, "target"), where)


def text_fault(tokens: NDArray[np.uint8]) -> str | None:
    """Why tokens are no UTF-8 text, the last character perhaps cut, or None."""
    if not len(tokens) or tokens.min() < 1:
        return "is empty or holds padding"
    try:
        codecs.getincrementaldecoder("utf-8")().decode(to_bytes(tokens), final=False)
    except UnicodeDecodeError as error:
        return f"is no UTF-8 text ({error.reason} at byte {error.start:,})"
    return None


def check_labels(targets: Integers, where: str) -> None:
    """Raise ``UserError`` unless labels are 0 and 1, neither of them much commoner than the other."""
    if len(wrong := np.setdiff1d(targets, [0, 1])):
        raise UserError(f"{where}: a row has the label {wrong[0]} instead of 0 or 1; look at task.source")
    positive = float(targets.mean())
    if max(positive, 1 - positive) > LARGEST_SHARE:
        raise UserError(f"{where}: {positive:.0%} of the labels are 1, which should be about half; look at task.source")


def check_repeats(split: str, reviews: Corpus, places: Mapping[str, Integers]) -> None:
    """Raise ``UserError`` where more whole reviews repeat others than in the official files, or validation shares one
    with train.
    """
    digests = {name: reviews.numbers(name, "digest")[rows] for name, rows in places.items()}
    own = digests[split]
    allowed = 0 if split == "validation" else OFFICIAL_REPEATS[split]
    if (repeated := len(own) - len(np.unique(own))) > allowed:
        raise UserError(
            f"text {split}: {repeated:,} reviews repeat others, more than the official {allowed}; look at task.source"
        )
    for other in digests.keys() - {split}:
        allowed = OFFICIAL_SHARED if "test" in (split, other) else 0
        held_out, seen = (own, digests[other]) if split != "train" else (digests[other], own)
        if (shared := int(np.isin(held_out, seen).sum())) > allowed:
            raise UserError(
                f"text {split}: shares {shared:,} reviews with {other}, more than the official {allowed}; look at "
                "task.source"
            )
