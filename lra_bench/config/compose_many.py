"""Compose the cells of a grid, or read them from the cache."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path

from . import compose as configuration
from . import disk_cache
from .layers import Loader

CACHE_FROM_CELLS = 20
"""Number of cells from which composing takes longer than checking whether a configuration file has changed."""


def composed(cells: Sequence[Sequence[str]], config_dir: Path | None) -> Iterator[configuration.Composed]:
    """Yield the composed configuration of each list of single-valued overrides. Call it inside ``hydra_context``."""
    cache_file = disk_cache.cache_path(cells, config_dir) if len(cells) >= CACHE_FROM_CELLS else None
    cached = disk_cache.read(cache_file) if cache_file else None
    if cached is not None:
        yield from cached
        return
    load, collected = Loader(config_dir), []
    for overrides in cells:
        collected.append(configuration.compose(overrides, config_dir, load))
        yield collected[-1]
    if cache_file:
        disk_cache.write(cache_file, collected, config_dir)
