"""Checks of prepared splits of the byte tasks."""

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

# Counted in the official files: reviews that repeat an earlier one of their split, and test reviews that are in train.
OFFICIAL_REPEATS = {"train": 96, "test": 199}
OFFICIAL_SHARED = 123
LARGEST_SHARE = 0.6


def check_rows(dataset: datasets.Dataset, where: str, max_length: int, pairs: bool = False) -> None:
    """Raise ``UserError`` if an example is invalid or the labels are not balanced.

    Args:
        dataset: The split.
        where: Name of the split, for messages.
        max_length: Largest length of a document in bytes.
        pairs: Whether an example consists of two documents.
    """
    column, remedy = ListColumn(dataset, "tokens", documents=pairs), "remove the data (lra-bench clean --data --yes)"
    longest = column.lengths.max(axis=1) if pairs else column.lengths
    if len(wrong := np.flatnonzero((longest != numbers(dataset, "length")) | (longest > max_length))):
        raise UserError(f"{where}: row {wrong[0]} has a wrong length or is too long; {remedy}")
    for row in range(len(column)):
        for text in texts_of(column, row, max_length):
            if fault := text_fault(text):
                raise UserError(f"{where}: row {row} {fault}; {remedy}")
    check_labels(numbers(dataset, "target"), where)


def text_fault(tokens: NDArray[np.uint8]) -> str | None:
    """Return why tokens are not UTF-8 text (whose last character may be truncated), or None."""
    if not len(tokens) or tokens.min() < 1:
        return "is empty or contains padding"
    try:
        codecs.getincrementaldecoder("utf-8")().decode(to_bytes(tokens), final=False)
    except UnicodeDecodeError as error:
        return f"is not UTF-8 text ({error.reason} at byte {error.start:,})"
    return None


def check_labels(targets: Integers, where: str) -> None:
    """Raise ``UserError`` unless all labels are 0 or 1, each at least 40 % of them."""
    if len(wrong := np.setdiff1d(targets, [0, 1])):
        raise UserError(f"{where}: a row has the label {wrong[0]} instead of 0 or 1; check task.source")
    positive = float(targets.mean())
    if max(positive, 1 - positive) > LARGEST_SHARE:
        raise UserError(f"{where}: {positive:.0%} of the labels are 1 instead of about half; check task.source")


def check_repeats(split: str, reviews: Corpus, places: Mapping[str, Integers]) -> None:
    """Raise ``UserError`` if a split contains more duplicates than the official files, or validation shares any text.

    Complete reviews are compared, not the truncated ones.

    Args:
        split: Name of the split to check.
        reviews: All reviews.
        places: Indices of the reviews of each split.
    """
    digests = {name: reviews.numbers(name, "digest")[rows] for name, rows in places.items()}
    checked = digests[split]
    allowed = 0 if split == "validation" else OFFICIAL_REPEATS[split]
    if (repeated := len(checked) - len(np.unique(checked))) > allowed:
        raise UserError(
            f"text {split}: {repeated:,} reviews are duplicates instead of at most {allowed}; check task.source"
        )
    for other in digests.keys() - {split}:
        allowed = OFFICIAL_SHARED if "test" in (split, other) else 0
        held_out, seen = (checked, digests[other]) if split != "train" else (digests[other], checked)
        if (shared := int(np.isin(held_out, seen).sum())) > allowed:
            raise UserError(
                f"text {split}: {shared:,} reviews are shared with {other} instead of at most {allowed}; "
                "check task.source"
            )
