"""Checks of a prepared split of pictures."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING

import numpy as np

from lra_bench.contracts import UserError
from lra_bench.data.columns import numbers
from lra_bench.data.examples import digests_of

from .pixels import CLASSES, to_pictures, to_tokens, to_values
from .rows import rows_of

if TYPE_CHECKING:
    import datasets

# In the examined JPEG copies of CIFAR-10 no two of the 60,000 pictures are equal in grey, not even if they are averaged
# down to 4 x 4 pixels. The near duplicates that Barz and Denzler 2020 (arXiv 1902.00423) found between train and test,
# 3.3 % of test, are not equal in every pixel.
LARGEST_SHARE_OF_DUPLICATES = 0.001
# In standard deviations: classes of the official splits have equal size, and a smaller split is a random sample of one.
LARGEST_DEVIATIONS = 6.0
DARK, BRIGHT = 32, 224


def check_pictures(dataset: datasets.Dataset, where: str, length: int, others: Mapping[str, datasets.Dataset]) -> None:
    """Raise ``UserError`` if a split has wrong lengths, intensities, class frequencies or too many duplicates.

    Args:
        dataset: The split.
        where: Name of the split, for messages.
        length: Number of pixels of each picture.
        others: The other splits by name; at most 0.1 % of the pictures may occur in one of them or twice in the split.
    """
    rows, labels = rows_of(dataset), numbers(dataset, "target")
    if rows.shape[1] != length or (numbers(dataset, "length") != length).any():
        raise UserError(f"{where}: not all rows have {length:,} pixels; {_REMEDY}")
    tokens = to_tokens(to_pictures(rows, 1))
    if rows.dtype.kind == "f" and not np.allclose(to_values(tokens), rows, atol=1e-4):
        raise UserError(f"{where}: values are not normalised intensities 0 to 255; {_REMEDY}")
    if tokens.min() > DARK or tokens.max() < BRIGHT:
        raise UserError(
            f"{where}: intensities are between {tokens.min()} and {tokens.max()} instead of 0 and 255; "
            "check the files of task.source"
        )
    counts = np.bincount(labels, minlength=CLASSES)
    allowed = LARGEST_DEVIATIONS * np.sqrt(len(labels) * (1 / CLASSES) * (1 - 1 / CLASSES))
    for label in np.flatnonzero(np.abs(counts - len(labels) / CLASSES) > allowed):
        raise UserError(
            f"{where}: {counts[label]:,} of {len(labels):,} rows have the label {label} instead of about a tenth; "
            "check the files of task.source"
        )
    digests = digests_of(dataset)
    shared = {name: len(digests & digests_of(other)) for name, other in others.items()}
    for name, count in {"the split itself": len(dataset) - len(digests), **shared}.items():
        if count > LARGEST_SHARE_OF_DUPLICATES * len(dataset):
            raise UserError(f"{where}: {count:,} rows occur again in {name}; check the files of task.source")


_REMEDY = "remove the data (lra-bench clean --data --yes)"
