"""Pathfinder pictures as rows of a data set, and back."""

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
    """Some pictures: ``pixels`` (n, height, width) uint8, ``labels`` (n,), and what else is known of each, (n,)."""

    pixels: NDArray[np.uint8]
    labels: Integers
    extra: Mapping[str, Integers] = field(default_factory=dict)


def drawn(parameters: Parameters, seed: int, first: int, count: int) -> Iterator[Part]:
    """Pictures ``first`` to ``first + count`` of a stream, with all that is told about them."""
    for part in pictures(parameters, seed, first, count):
        told = {name: part.about[:, number].copy() for number, name in enumerate(COLUMNS) if number != LABEL}
        yield Part(part.pixels, part.about[:, LABEL].copy(), told)


def read(dataset: datasets.Dataset, parameters: Parameters, rows: Integers | None = None) -> Iterator[Part]:
    """Pictures of a prepared split at the places ``rows`` (by default all), some at a time."""
    linear = "values" in dataset.column_names
    column, labels = ListColumn(dataset, "values" if linear else "tokens"), numbers(dataset, "target")
    width = parameters.resolution
    rows = np.arange(len(column)) if rows is None else rows
    at_once = max(1, PIXELS_PER_PART // int(column.lengths.max(initial=1)))
    for start in range(0, len(rows), at_once):
        chosen = rows[start : start + at_once]
        content = column.padded(chosen, int(column.lengths[chosen[0]]), column.values[0].dtype, 0)
        pixels = np.rint(content * 255).astype(np.uint8) if linear else content
        yield Part(pixels.reshape(len(chosen), -1, width), labels[chosen])


def tables(parts: Iterable[Part], linear: bool, advance: Advance) -> Iterator[pyarrow.Table]:
    """Columns ``tokens``, or ``values`` (0 to 1) where ``linear``, ``target``, ``length`` and the extra ones."""
    for part in parts:
        content = part.pixels.reshape(len(part.pixels), -1)
        values = content.astype(np.float32) / np.float32(255) if linear else content
        lengths = np.full(len(content), content.shape[1], dtype=np.int64)
        yield Examples(values.ravel(), lengths, part.labels, part.extra).table(fixed=True)
        advance(len(content))


def on_canvas(parts: Iterable[Part], height: int, seed: tuple[int, ...]) -> Iterator[Part]:
    """Pictures, each at a random height of a black canvas as wide as itself."""
    generator = np.random.Generator(np.random.PCG64(np.random.SeedSequence(seed)))
    for part in parts:
        count, size, width = part.pixels.shape
        canvas = np.zeros((count, height, width), dtype=np.uint8)
        tops = generator.integers(0, height - size, count, endpoint=True)
        canvas[np.arange(count)[:, None], tops[:, None] + np.arange(size)] = part.pixels
        yield Part(canvas, part.labels, {"top": tops})
