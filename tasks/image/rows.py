"""Convert pictures to rows of a data set, and back."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from lra_bench.data.cache import Advance
from lra_bench.data.columns import ListColumn
from lra_bench.data.examples import Examples

from .pixels import Pictures, to_tokens, to_values

if TYPE_CHECKING:
    import datasets
    import pyarrow


def tables(
    parts: Iterable[Pictures], labels: NDArray[np.int64], linear: bool, advance: Advance
) -> Iterator[pyarrow.Table]:
    """Yield tables with the columns ``tokens`` (``values`` if ``linear``), ``target`` and ``length``.

    Args:
        parts: The pictures, in parts.
        labels: Labels of all pictures.
        linear: Whether to store normalised values instead of tokens.
        advance: Called with the number of pictures, for the progress bar.
    """
    start = 0
    for pictures in parts:
        rows = to_tokens(pictures)
        content = to_values(rows) if linear else rows
        targets = labels[start : start + len(rows)]
        yield Examples(content.ravel(), np.full(len(rows), rows.shape[1], dtype=np.int64), targets).table(fixed=True)
        advance(len(rows))
        start += len(rows)


def rows_of(dataset: datasets.Dataset) -> NDArray[Any]:
    """Return the input of a split of equal lengths, (R, N): tokens uint8 or values float32."""
    column = ListColumn(dataset, "tokens" if "tokens" in dataset.column_names else "values")
    width = int(column.lengths.max(initial=0))
    return column.padded(np.arange(len(column)), width, column.values[0].dtype, 0)
