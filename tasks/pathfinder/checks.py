"""What a prepared split of Pathfinder pictures is held against."""

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

# Of a random half and half; fewer rows are a random sample.
LARGEST_DEVIATIONS = 6.0
LARGEST_SHARE_OF_FAULTS = 0.001
TRACED_ROWS = 512
# Of pictures whose markers a contour joins nearly all have the label 1 (97 of 100 and more, in every set that we drew
# or saw), and half of them where labels are drawn by lot: with 100 such pictures, 75 are never reached by chance.
LEAST_AGREEMENT = 0.75
# Tracing finds a contour in half of all pictures; where it finds hardly any, it says nothing about labels.
LEAST_SHARE_TRACED = 0.1
_REMOVE = "remove the data (lra-bench clean --data --yes)"


class Agreement(NamedTuple):
    """Of ``rows`` pictures looked at, a contour joins the markers of ``traced``, and ``joined`` of these say so."""

    rows: int
    traced: int
    joined: int


def check_pictures(
    dataset: datasets.Dataset, where: str, parameters: Parameters, others: Mapping[str, datasets.Dataset]
) -> None:
    """Raise ``UserError`` where rows are no stretched pictures, labels are out of balance or unrelated to the pictures,
    or more rows than a thousandth are equal to others of the split or of ``others``.
    """
    pixels, labels = parameters.resolution**2, numbers(dataset, "target")
    lengths = ListColumn(dataset, "values" if "values" in dataset.column_names else "tokens").lengths
    if (lengths != pixels).any() or (numbers(dataset, "length") != pixels).any():
        raise UserError(f"{where}: rows are not of {pixels:,} pixels; {_REMOVE}")
    if not np.isin(labels, (0, 1)).all():
        raise UserError(f"{where}: there are other labels than 0 and 1; {_REMOVE}")
    _check_range(dataset, where, parameters)
    if abs(labels.mean() - 0.5) * 2 * np.sqrt(len(labels)) > LARGEST_DEVIATIONS:
        raise UserError(
            f"{where}: {labels.sum():,} of {len(labels):,} rows have the label 1, about half should; "
            "check the files of task.source"
        )
    check_agreement(agreement(dataset, parameters), where)
    digests = digests_of(dataset)
    shared = {name: len(digests & digests_of(other)) for name, other in others.items()}
    for what, count in {"the split itself": len(dataset) - len(digests), **shared}.items():
        if count > LARGEST_SHARE_OF_FAULTS * len(dataset):
            raise UserError(f"{where}: {count:,} rows occur in {what} too; check the files of task.source")


def agreement(dataset: datasets.Dataset, parameters: Parameters, among: Integers | None = None) -> Agreement:
    """How labels agree with traced contours, on up to 512 rows spread over all or over those ``among`` them."""
    among = np.arange(len(dataset)) if among is None else among
    sample = among[np.unique(np.linspace(0, len(among) - 1, TRACED_ROWS).astype(np.int64))]
    traced, joined = 0, 0
    for part in read(dataset, parameters, sample):
        found = trace(part.pixels, parameters)
        traced += int(found.sum())
        joined += int(part.labels[found].sum())
    return Agreement(len(sample), traced, joined)


def check_agreement(found: Agreement, where: str) -> None:
    """Raise ``UserError`` where labels have nothing to do with the pictures; say so where that cannot be told."""
    if found.traced < LEAST_SHARE_TRACED * found.rows:
        say(
            f"{where}: a contour as published is found in {found.traced:,} of {found.rows:,} pictures, so that labels "
            "cannot be held against them; task.resolution or task.difficulty may not be that of the files"
        )
    elif found.joined < LEAST_AGREEMENT * found.traced:
        raise UserError(
            f"{where}: labels have nothing to do with the pictures: a contour joins the markers in {found.traced:,} of "
            f"{found.rows:,}, and only {found.joined:,} of these have the label 1 (one copy of pathfinder128 in Long "
            "Range Arena's archive is such, issue 38 of google-research/long-range-arena); name another task.source"
        )


def _check_range(dataset: datasets.Dataset, where: str, parameters: Parameters) -> None:
    faults = 0
    for part in read(dataset, parameters):
        lowest, highest = part.pixels.min(axis=(1, 2)), part.pixels.max(axis=(1, 2))
        faults += int(((lowest > 0) | (highest < 255)).sum())
    if faults > LARGEST_SHARE_OF_FAULTS * len(dataset):
        raise UserError(
            f"{where}: {faults:,} of {len(dataset):,} pictures do not reach from 0 to 255; check the files of "
            "task.source"
        )
