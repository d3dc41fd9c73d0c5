"""Figures that rebuild from the records alone, by name."""

from __future__ import annotations

import importlib
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from lra_bench.records.schema import Record

FIGURES = ("extrapolation", "evaluation_knobs", "loss_by_position", "speed_vs_length")
ALWAYS = ("extrapolation", "speed_vs_length")
"""Figures that are drawn where there is nothing to show in them, too, when all are asked for."""


def draw(name: str, records: Sequence[Record], folder: Path) -> list[Path]:
    """Draw one figure into ``folder``: its PDF, its PNG and its data as CSV."""
    from .style import save

    figure, data = importlib.import_module(f"{__name__}.{name}").draw(records)
    return save(figure, data, folder, name)


def draw_all(records: Sequence[Record], folder: Path, empty: bool = True) -> Iterator[list[Path]]:
    """Draw every figure that has something to show, and with ``empty`` those that always stand."""
    from .style import save

    for name in FIGURES:
        figure, data = importlib.import_module(f"{__name__}.{name}").draw(records)
        if len(data) or (empty and name in ALWAYS):
            yield save(figure, data, folder, name)
