"""Tick labels of axes of lengths and of logarithmic axes."""

from __future__ import annotations

import math
from collections.abc import Iterable
from typing import TYPE_CHECKING, Any, Literal

from .style import text_inches

if TYPE_CHECKING:
    from matplotlib.axes import Axes


def length_name(length: int) -> str:
    """Return the tick label of a length in tokens: ``4k``, ``500``."""
    return f"{length // 1024}k" if length % 1024 == 0 else f"{length:,}"


def lengths_below(ax: Axes, lengths: Iterable[int]) -> None:
    """Set a logarithmic x axis with labels at as many of the lengths as fit, powers of two first."""
    from matplotlib.ticker import NullLocator

    found = sorted(lengths)
    ax.set_xscale("log", base=2)
    ax.set_xlim(found[0] / 1.3, found[-1] * 1.3)
    inches = ax.bbox.width / ax.figure.dpi / math.log(found[-1] / found[0] * 1.69)
    shown: list[int] = []
    for length in sorted(found, key=lambda length: (length & (length - 1) != 0, -length)):
        if all(abs(math.log(length / other)) * inches >= _room(length, other) for other in shown):
            shown.append(length)
    ax.xaxis.set_minor_locator(NullLocator())
    ax.set_xticks(sorted(shown), [length_name(length) for length in sorted(shown)])


def _room(*lengths: int) -> float:
    """Return the minimum distance in inches between the centres of two adjacent labels."""
    return sum(text_inches(length_name(length)) for length in lengths) / 2 + 0.06


def logarithmic(ax: Axes, axis: Literal["x", "y"]) -> None:
    """Set a logarithmic axis that has at least three labels and spans at least a decade."""
    from matplotlib.ticker import FuncFormatter, LogLocator, NullFormatter, NullLocator

    (ax.set_xscale if axis == "x" else ax.set_yscale)("log")
    low, high = ax.get_xlim() if axis == "x" else ax.get_ylim()
    if high / low < 10:
        factor = (10 * low / high) ** 0.5
        low, high = low / factor, high * factor
        (ax.set_xlim if axis == "x" else ax.set_ylim)(low, high)
    target = ax.xaxis if axis == "x" else ax.yaxis
    target.set_major_locator(LogLocator(subs=_steps(low, high), numticks=8))
    target.set_minor_locator(NullLocator())
    target.set_minor_formatter(NullFormatter())
    target.set_major_formatter(FuncFormatter(lambda value, _: magnitude(value)))


def _steps(low: float, high: float) -> tuple[int, ...]:
    """Return the smallest set of labels per decade that gives three or more labels on the axis."""
    decades = range(math.floor(math.log10(low)), math.ceil(math.log10(high)))
    for steps in ((1,), (1, 3)):
        if sum(low <= step * 10.0**decade <= high for decade in decades for step in steps) >= 3:
            return steps
    return 1, 2, 5


def magnitude(value: Any) -> str:
    """Return the tick label of a number: ``0.5``, ``20``, ``3k``, ``40M``."""
    for unit, name in ((1e9, "G"), (1e6, "M"), (1e3, "k")):
        if abs(value) >= unit:
            return f"{value / unit:g}{name}"
    return f"{value:g}"
