"""The configurations of many systems on one task."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from lra_bench.config.compose import Loader, compose
from lra_bench.config.schema import CellConfig


def of_systems(names: Sequence[str], *overrides: str) -> Iterator[CellConfig]:
    """Yield the configuration of each system under ``protocol=smoke``."""
    load = Loader(None)
    for name in names:
        given = [*overrides, "protocol=smoke", f"model={name}", "tracker=none"]
        yield compose(given, load=load).config
