"""What a prepared split of pictures is held against."""

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

# In no JPEG copy of CIFAR-10 that we saw are two of the 60,000 pictures equal in grey; the near duplicates that Barz
# and Denzler 2020 (arXiv 1902.00423) found between train and test, 3.3 % of test, are not equal pixel by pixel.
LARGEST_SHARE_OF_DUPLICATES = 0.001
# Official splits hold as many pictures of each class; fewer rows are a random sample of them.
LARGEST_DEVIATIONS = 6.0
DARK, BRIGHT = 32, 224


def check_pictures(dataset: datasets.Dataset, where: str, length: int, others: Mapping[str, datasets.Dataset]) -> None:
    """Raise ``UserError`` where rows are of another length, hold no intensities or only some of them, where classes are
    out of balance, or where more rows than a thousandth are equal to others of the split or of ``others``.
    """
    rows, labels = rows_of(dataset), numbers(dataset, "target")
    if rows.shape[1] != length or (numbers(dataset, "length") != length).any():
        raise UserError(f"{where}: rows are not of {length:,} pixels; {_REMOVE}")
    tokens = to_tokens(to_pictures(rows, 1))
    if rows.dtype.kind == "f" and not np.allclose(to_values(tokens), rows, atol=1e-4):
        raise UserError(f"{where}: values are not those of intensities 0 to 255; {_REMOVE}")
    if tokens.min() > DARK or tokens.max() < BRIGHT:
        raise UserError(
            f"{where}: intensities lie between {tokens.min()} and {tokens.max()} instead of 0 and 255; "
            "check the files of task.source"
        )
    counts = np.bincount(labels, minlength=CLASSES)
    allowed = LARGEST_DEVIATIONS * np.sqrt(len(labels) * (1 / CLASSES) * (1 - 1 / CLASSES))
    for label in np.flatnonzero(np.abs(counts - len(labels) / CLASSES) > allowed):
        raise UserError(
            f"{where}: {counts[label]:,} of {len(labels):,} rows have the label {label}, about a tenth should; "
            "check the files of task.source"
        )
    digests = digests_of(dataset)
    shared = {name: len(digests & digests_of(other)) for name, other in others.items()}
    for what, count in {"the split itself": len(dataset) - len(digests), **shared}.items():
        if count > LARGEST_SHARE_OF_DUPLICATES * len(dataset):
            raise UserError(f"{where}: {count:,} rows occur in {what} too; check the files of task.source")


_REMOVE = "remove the data (lra-bench clean --data --yes)"
