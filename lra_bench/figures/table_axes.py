"""Axes with one row per variant, labelled at the left with marker and name."""

from __future__ import annotations

import itertools
import textwrap
from collections.abc import Iterator, Mapping, Sequence
from typing import TYPE_CHECKING

from .palette import Look
from .style import TINY, line_inches, text_inches

if TYPE_CHECKING:
    from matplotlib.axes import Axes

GLYPH_POINTS = 12.0
"""Width of the marker between a name and the axes."""
ROW_GAP_INCHES = 0.025


def wrapped(label: str, room: float) -> str:
    """Wrap a label to ``room`` inches."""
    return textwrap.fill(label, int(room / text_inches("n", TINY)))


def edges(labels: Sequence[str], room: float) -> list[float]:
    """Return the upper edges of the rows and the lower edge of the last, in inches from the top."""
    lines = (wrapped(label, room).count("\n") + 1 for label in labels)
    return list(itertools.accumulate((count * line_inches(TINY) + ROW_GAP_INCHES for count in lines), initial=0.0))


def chunks(keys: Sequence[tuple[str, str]], most: int) -> Iterator[Sequence[tuple[str, str]]]:
    """Yield ``keys`` in as few chunks of similar size as possible, with at most ``most`` rows each."""
    size = max(-(-len(keys) // max(-(-len(keys) // most), 1)), 1)
    for start in range(0, len(keys), size):
        yield keys[start : start + size]


def draw(
    ax: Axes, room: float, keys: Sequence[tuple[str, str]], look_of: Mapping[tuple[str, str], Look]
) -> dict[str, float]:
    """Draw the names, wrapped to ``room`` inches, and markers of the rows ``keys``; return the y of each label."""
    from matplotlib.transforms import ScaledTranslation

    labels = [label for _, label in keys]
    ends = edges(labels, room)
    middles = [(above + below) / 2 for above, below in itertools.pairwise(ends)]
    ax.set_ylim(ends[-1], 0)
    ax.set_yticks(middles, [wrapped(label, room) for label in labels], fontsize=TINY, linespacing=1.0)
    ax.tick_params(axis="y", length=0, pad=GLYPH_POINTS)
    ax.grid(visible=False, axis="y")
    left = ax.get_yaxis_transform() + ScaledTranslation(-GLYPH_POINTS / 144, 0, ax.figure.dpi_scale_trans)
    for key, middle in zip(keys, middles, strict=True):
        ax.plot([0], [middle], transform=left, clip_on=False, linestyle="none", **look_of[key].points())
    return dict(zip(labels, middles, strict=True))
