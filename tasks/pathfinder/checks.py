"""Checks of a prepared split of Pathfinder pictures."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from lra_bench.contracts import UserError
from lra_bench.data.columns import Integers, ListColumn, numbers
from lra_bench.data.examples import digests_of
from lra_bench.progress import say

from .parameters import Parameters
from .rows import read
from .tracing import trace

if TYPE_CHECKING:
    import datasets

# In standard deviations: labels are balanced, and a smaller split is a random sample.
LARGEST_DEVIATIONS = 6.0
LARGEST_SHARE_OF_FAULTS = 0.001
TRACED_ROWS = 512
# At least 97 % of the pictures in which a contour joining the markers is found have the label 1, in every examined set,
# and 50 % if the labels are random: among 100 such pictures, 75 with the label 1 do not occur by chance.
LEAST_AGREEMENT = 0.75
# A contour is found in half of all pictures. If it is found in few, tracing is no evidence about the labels.
LEAST_SHARE_TRACED = 0.1
_REMEDY = "remove the data (lra-bench clean --data --yes)"


class Agreement(NamedTuple):
    """Agreement of labels with traced contours.

    Attributes:
        rows: Number of examined pictures.
        traced: Number of those in which a contour joining the markers is found.
        joined: Number of these with the label 1.
    """

    rows: int
    traced: int
    joined: int


def check_pictures(
    dataset: datasets.Dataset, where: str, parameters: Parameters, others: Mapping[str, datasets.Dataset]
) -> None:
    """Raise ``UserError`` if a split has wrong intensities, labels or too many duplicates.

    Pictures must have intensities from 0 to 255, labels must be balanced and agree with the pictures.

    Args:
        dataset: The split.
        where: Name of the split, for messages.
        parameters: Parameters of the pictures.
        others: The other splits by name; at most 0.1 % of the pictures may occur in one of them or twice in the split.
    """
    pixels, labels = parameters.resolution**2, numbers(dataset, "target")
    lengths = ListColumn(dataset, "values" if "values" in dataset.column_names else "tokens").lengths
    if (lengths != pixels).any() or (numbers(dataset, "length") != pixels).any():
        raise UserError(f"{where}: not all rows have {pixels:,} pixels; {_REMEDY}")
    if not np.isin(labels, (0, 1)).all():
        raise UserError(f"{where}: there are labels other than 0 and 1; {_REMEDY}")
    _check_range(dataset, where, parameters)
    if abs(labels.mean() - 0.5) * 2 * np.sqrt(len(labels)) > LARGEST_DEVIATIONS:
        raise UserError(
            f"{where}: {labels.sum():,} of {len(labels):,} rows have the label 1 instead of about half; "
            "check the files of task.source"
        )
    check_agreement(agreement(dataset, parameters), where)
    digests = digests_of(dataset)
    shared = {name: len(digests & digests_of(other)) for name, other in others.items()}
    for name, count in {"the split itself": len(dataset) - len(digests), **shared}.items():
        if count > LARGEST_SHARE_OF_FAULTS * len(dataset):
            raise UserError(f"{where}: {count:,} rows occur again in {name}; check the files of task.source")


def agreement(dataset: datasets.Dataset, parameters: Parameters, among: Integers | None = None) -> Agreement:
    """Compare labels with traced contours on up to 512 evenly spaced pictures.

    ``among`` restricts the pictures to these indices.
    """
    among = np.arange(len(dataset)) if among is None else among
    sample = among[np.unique(np.linspace(0, len(among) - 1, TRACED_ROWS).astype(np.int64))]
    traced, joined = 0, 0
    for part in read(dataset, parameters, sample):
        found = trace(part.pixels, parameters)
        traced += int(found.sum())
        joined += int(part.labels[found].sum())
    return Agreement(len(sample), traced, joined)


def check_agreement(found: Agreement, where: str) -> None:
    """Raise ``UserError`` if labels do not agree with the pictures; print a warning if this cannot be determined."""
    if found.traced < LEAST_SHARE_TRACED * found.rows:
        say(
            f"{where}: a contour with the published parameters is found in only {found.traced:,} of {found.rows:,} "
            "pictures, so labels cannot be checked; task.resolution or task.difficulty may not be that of the files"
        )
    elif found.joined < LEAST_AGREEMENT * found.traced:
        raise UserError(
            f"{where}: labels do not agree with the pictures: a contour joins the markers in {found.traced:,} of "
            f"{found.rows:,}, and only {found.joined:,} of these have the label 1 (as in one copy of pathfinder128 in "
            "the archive of Long Range Arena, issue 38 of google-research/long-range-arena); set another task.source"
        )


def _check_range(dataset: datasets.Dataset, where: str, parameters: Parameters) -> None:
    """Raise ``UserError`` if the intensities of more than 0.1 % of the pictures do not range from 0 to 255."""
    faults = 0
    for part in read(dataset, parameters):
        lowest, highest = part.pixels.min(axis=(1, 2)), part.pixels.max(axis=(1, 2))
        faults += int(((lowest > 0) | (highest < 255)).sum())
    if faults > LARGEST_SHARE_OF_FAULTS * len(dataset):
        raise UserError(
            f"{where}: {faults:,} of {len(dataset):,} pictures do not have intensities from 0 to 255; check the files "
            "of task.source"
        )
