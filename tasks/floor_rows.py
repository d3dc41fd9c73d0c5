"""Floors of every example, committed in the repository or stored in the cache of the data."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from lra_bench.data.digest import settings_digest

if TYPE_CHECKING:
    from lra_bench.contracts import DataCache
    from lra_bench.data.cache import Advance

FLOORS_VERSION = 2
"""To be incremented if rules of any task are added or changed."""

COMMITTED = Path(__file__).with_name("floors.npz")
"""Columns of the shipped protocols, by ``name-key/rule``; ``python -m tests.support.committed_floors`` writes them."""


def stored(
    cache: DataCache,
    name: str,
    key: str,
    make: Callable[[Advance], Mapping[str, NDArray[Any]]],
    total: int,
    description: str,
) -> dict[str, NDArray[np.float64]]:
    """Return columns (R,) from the repository or from the cache of the data; compute them if they are in neither.

    Args:
        cache: The cache.
        name: Name of the data set; begins with the task's name.
        key: Digest of everything that determines the columns, except the version of the floors.
        make: Function that computes the columns; it receives the function that advances the progress bar.
        total: Number of units for the progress bar.
        description: Label of the progress bar.

    Returns:
        The columns.
    """
    key = settings_digest(FLOORS_VERSION, key)
    if columns := committed(name, key):
        return columns

    def dataset(advance: Advance) -> Any:
        from datasets import Dataset

        columns = make(advance)
        return Dataset.from_dict({column: np.asarray(values, dtype=np.float64) for column, values in columns.items()})

    # The format "numpy" of datasets would return single precision.
    found = cache.dataset(name, key, dataset, total, description).data
    return {column: found.column(column).to_numpy() for column in found.column_names}


def noted(cache: DataCache, name: str, key: str, make: Callable[[], Mapping[str, float]]) -> dict[str, float]:
    """Return numbers like ``stored``, for floors of which only the score is stored."""
    key = settings_digest(FLOORS_VERSION, key)
    numbers = committed(name, key)
    return {rule: float(value) for rule, value in numbers.items()} or cache.note(name, key, make)


def means(rows: Mapping[str, NDArray[Any]]) -> dict[str, float]:
    """Return the accuracy of each floor for examples with one target."""
    return {name: float(correct.mean()) for name, correct in rows.items()}


def committed(name: str, key: str) -> dict[str, NDArray[np.float64]]:
    """Return the columns that are committed in the repository, empty if there are none."""
    prefix = f"{name}-{key}/"
    with np.load(COMMITTED) as columns:
        members = [member for member in columns.files if member.startswith(prefix)]
        return {member.removeprefix(prefix): columns[member].astype(np.float64) for member in members}
