"""Axes with one row per variant, labelled at the left with marker and name."""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from .palette import Look
from .style import TINY, line_inches, text_inches, wrapped

if TYPE_CHECKING:
    from matplotlib.axes import Axes

GLYPH_INCHES = 0.14
GAP_INCHES = 0.04
EDGE_INCHES = 0.08
ROW_GAP_INCHES = 0.025


@dataclass(frozen=True)
class Rows:
    """The wrapped names of rows by label, and the width in inches that they need to the left of the axes."""

    names: Mapping[str, str]
    left: float

    def edges(self, keys: Sequence[tuple[str, str]]) -> list[float]:
        """Return the upper edges of the rows of ``keys`` and the lower edge of the last, in inches from the top."""
        heights = [(self.names[label].count("\n") + 1) * line_inches(TINY) + ROW_GAP_INCHES for _, label in keys]
        return list(itertools.accumulate(heights, initial=0.0))


def measure(labels: Sequence[str], room: float) -> Rows:
    """Wrap labels to at most ``room`` inches, marker included."""
    names = {label: wrapped(label, room - GLYPH_INCHES - GAP_INCHES - EDGE_INCHES, TINY) for label in labels}
    widest = max((text_inches(name, TINY) for name in names.values()), default=0.0)
    return Rows(names, widest + GLYPH_INCHES + GAP_INCHES + EDGE_INCHES)


def chunks(keys: Sequence[tuple[str, str]], most: int) -> Iterator[Sequence[tuple[str, str]]]:
    """Yield ``keys`` in as few chunks of similar size as possible, with at most ``most`` rows each."""
    panels = -(-len(keys) // most)
    size = -(-len(keys) // max(panels, 1))
    for start in range(0, len(keys), max(size, 1)):
        yield keys[start : start + size]


def draw(
    ax: Axes, rows: Rows, keys: Sequence[tuple[str, str]], look_of: Mapping[tuple[str, str], Look]
) -> dict[str, float]:
    """Draw the names and markers of the rows ``keys`` from the top of ``ax``, and return the y of each label."""
    from matplotlib.transforms import ScaledTranslation, blended_transform_factory

    edges = rows.edges(keys)
    middles = [(above + below) / 2 for above, below in itertools.pairwise(edges)]
    ax.set_ylim(edges[-1], 0)
    ax.set_yticks([])
    scale = ax.figure.dpi_scale_trans
    margin = blended_transform_factory(ax.transAxes, ax.transData)
    glyphs = margin + ScaledTranslation(-(GLYPH_INCHES / 2 + 0.02), 0, scale)
    names = margin + ScaledTranslation(-(GLYPH_INCHES + GAP_INCHES), 0, scale)
    for key, middle in zip(keys, middles, strict=True):
        ax.plot([0], [middle], transform=glyphs, clip_on=False, linestyle="none", **look_of[key].points())
        # Tick labels are not used: each adds lines and texts that are laid out although they are invisible.
        ax.text(
            0, middle, rows.names[key[1]], transform=names, fontsize=TINY, linespacing=1.0, ha="right",
            va="center_baseline" if "\n" not in rows.names[key[1]] else "center", multialignment="right",
        )  # fmt: skip
    return {label: middle for (_, label), middle in zip(keys, middles, strict=True)}
