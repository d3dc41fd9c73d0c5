"""The cells of a grid composed, or recalled from an earlier time."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path

from . import compose as configuration
from . import disk_cache
from .group_cache import Loader

WORTH_KEEPING = 20
"""Cells from which on composing them takes longer than to see whether a file has changed."""


def composed(cells: Sequence[Sequence[str]], config_dir: Path | None) -> Iterator[configuration.Composed]:
    """Each list of single values composed, inside ``hydra_context``."""
    place = disk_cache.place_of(cells, config_dir) if len(cells) >= WORTH_KEEPING else None
    known = disk_cache.recall(place) if place else None
    if known is not None:
        yield from known
        return
    load, made = Loader(config_dir), []
    for single in cells:
        made.append(configuration.compose(single, config_dir, load))
        yield made[-1]
    if place:
        disk_cache.keep(place, made, config_dir)
