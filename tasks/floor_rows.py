"""Floors of every example, stored in the cache of the data."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

if TYPE_CHECKING:
    from lra_bench.contracts import DataCache
    from lra_bench.data.cache import Advance


def stored(
    cache: DataCache,
    name: str,
    key: str,
    make: Callable[[Advance], Mapping[str, NDArray[Any]]],
    total: int,
    description: str,
) -> dict[str, NDArray[np.float64]]:
    """Return columns (R,) from the cache of the data, computing them if they are not there.

    Args:
        cache: The cache.
        name: Name of the data set; begins with the task's name.
        key: Digest of everything that determines the columns.
        make: Function that computes the columns; it receives the function that advances the progress bar.
        total: Number of units for the progress bar.
        description: Label of the progress bar.

    Returns:
        The columns.
    """

    def dataset(advance: Advance) -> Any:
        from datasets import Dataset

        columns = make(advance)
        return Dataset.from_dict({column: np.asarray(values, dtype=np.float64) for column, values in columns.items()})

    # The format "numpy" of datasets would return single precision.
    found = cache.dataset(name, key, dataset, total, description).data
    return {column: found.column(column).to_numpy() for column in found.column_names}


def means(rows: Mapping[str, NDArray[Any]]) -> dict[str, float]:
    """Return the accuracy of each floor for examples with one target."""
    return {name: float(correct.mean()) for name, correct in rows.items()}
