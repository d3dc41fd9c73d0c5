"""Axes whose rows are variants: their names at the left, each with its marker, wrapped where they are long."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from .palette import Look
from .style import POINTS, TINY, line_inches, text_inches, wrapped

if TYPE_CHECKING:
    from matplotlib.axes import Axes

GLYPH_INCHES = 0.14
GAP_INCHES = 0.04
EDGE_INCHES = 0.08


@dataclass(frozen=True)
class Rows:
    """Names of rows as they are drawn, the inches that they take left of the axes, and the height of a row."""

    names: Mapping[str, str]
    left: float
    pitch: float

    def height(self, count: int) -> float:
        """Inches of axes with so many rows."""
        return max(count, 1) * self.pitch


def measure(labels: Sequence[str], room: float) -> Rows:
    """How rows with these labels are drawn where at most ``room`` inches are left for names."""
    names = {label: wrapped(label, room - GLYPH_INCHES - GAP_INCHES - EDGE_INCHES, TINY) for label in labels}
    widest = max((text_inches(name, TINY) for name in names.values()), default=0.0)
    lines = max((name.count("\n") + 1 for name in names.values()), default=1)
    return Rows(names, widest + GLYPH_INCHES + GAP_INCHES + EDGE_INCHES, lines * line_inches(TINY) + 0.025)


def draw(ax: Axes, rows: Rows, keys: Sequence[tuple[str, str]], look_of: Mapping[tuple[str, str], Look]) -> None:
    """Name the rows 0, 1, … of ``ax``, from the top, by the labels of ``keys``, with the marker of each."""
    from matplotlib.transforms import ScaledTranslation, blended_transform_factory

    ax.set_ylim(len(keys) - 0.5, -0.5)
    ax.set_yticks(range(len(keys)), [rows.names[label] for _, label in keys], fontsize=TINY, linespacing=1.0)
    ax.tick_params(axis="y", length=0, pad=(GLYPH_INCHES + GAP_INCHES) * POINTS)
    ax.grid(visible=False, axis="y")
    aside = ScaledTranslation(-(GLYPH_INCHES / 2 + 0.02), 0, ax.figure.dpi_scale_trans)
    beside = blended_transform_factory(ax.transAxes, ax.transData) + aside
    for number, key in enumerate(keys):
        ax.plot([0], [number], transform=beside, clip_on=False, linestyle="none", **look_of[key].points())
