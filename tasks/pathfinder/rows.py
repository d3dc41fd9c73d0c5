"""Convert Pathfinder pictures to rows of a data set, and back."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from lra_bench.data.cache import Advance
from lra_bench.data.columns import Integers, ListColumn, numbers
from lra_bench.data.examples import Examples

from .drawing import COLUMNS, LABEL
from .generation import pictures
from .parameters import Parameters

if TYPE_CHECKING:
    import datasets
    import pyarrow

PIXELS_PER_PART = 1 << 24


@dataclass(frozen=True)
class Part:
    """Part of the pictures: ``pixels`` (n, height, width) uint8, ``labels`` (n,), and further columns (n,) by name."""

    pixels: NDArray[np.uint8]
    labels: Integers
    extra: Mapping[str, Integers] = field(default_factory=dict)


def drawn(parameters: Parameters, seed: int, first: int, count: int) -> Iterator[Part]:
    """Yield pictures ``first`` to ``first + count`` (exclusive) of a stream, with all metadata as columns."""
    for part in pictures(parameters, seed, first, count):
        extra = {name: part.about[:, number].copy() for number, name in enumerate(COLUMNS) if number != LABEL}
        yield Part(part.pixels, part.about[:, LABEL].copy(), extra)


def read(dataset: datasets.Dataset, parameters: Parameters, rows: Integers | None = None) -> Iterator[Part]:
    """Yield the pictures of a prepared split with the indices ``rows`` (by default all), in parts."""
    linear = "values" in dataset.column_names
    column, labels = ListColumn(dataset, "values" if linear else "tokens"), numbers(dataset, "target")
    width = parameters.resolution
    rows = np.arange(len(column)) if rows is None else rows
    rows_per_part = max(1, PIXELS_PER_PART // int(column.lengths.max(initial=1)))
    for start in range(0, len(rows), rows_per_part):
        indices = rows[start : start + rows_per_part]
        content = column.padded(indices, int(column.lengths[indices[0]]), column.values[0].dtype, 0)
        pixels = np.rint(content * 255).astype(np.uint8) if linear else content
        yield Part(pixels.reshape(len(indices), -1, width), labels[indices])


def tables(parts: Iterable[Part], linear: bool, advance: Advance) -> Iterator[pyarrow.Table]:
    """Yield tables of ``tokens`` (``values`` from 0 to 1 if ``linear``), ``target``, ``length`` and further columns."""
    for part in parts:
        content = part.pixels.reshape(len(part.pixels), -1)
        values = content.astype(np.float32) / np.float32(255) if linear else content
        lengths = np.full(len(content), content.shape[1], dtype=np.int64)
        yield Examples(values.ravel(), lengths, part.labels, part.extra).table(fixed=True)
        advance(len(content))


def on_canvas(parts: Iterable[Part], height: int, seed: tuple[int, ...]) -> Iterator[Part]:
    """Yield pictures at a random height on a black canvas of the same width; column ``top`` is the first line."""
    generator = np.random.Generator(np.random.PCG64(np.random.SeedSequence(seed)))
    for part in parts:
        count, size, width = part.pixels.shape
        canvas = np.zeros((count, height, width), dtype=np.uint8)
        tops = generator.integers(0, height - size, count, endpoint=True)
        canvas[np.arange(count)[:, None], tops[:, None] + np.arange(size)] = part.pixels
        yield Part(canvas, part.labels, {"top": tops})
