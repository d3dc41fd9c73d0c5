"""Tick labels of axes of lengths and of logarithmic axes."""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING, Any, Literal

if TYPE_CHECKING:
    from matplotlib.axes import Axes


def length_name(length: float) -> str:
    """Return the tick label of a length in tokens: ``4k``, ``500``."""
    return f"{length / 1024:.0f}k" if length % 1024 == 0 else f"{length:,.0f}"


def lengths_below(ax: Axes, lengths: Iterable[int]) -> None:
    """Set a logarithmic x axis with labels at powers of two."""
    from matplotlib.ticker import FuncFormatter, LogLocator

    found = sorted(lengths)
    ax.set_xscale("log", base=2)
    ax.set_xlim(found[0] / 1.45, found[-1] * 1.45)  # at least one power of two
    ax.minorticks_off()
    ax.xaxis.set_major_locator(LogLocator(base=2, numticks=8))
    ax.xaxis.set_major_formatter(FuncFormatter(lambda value, _: length_name(value)))


def logarithmic(ax: Axes, axis: Literal["x", "y"]) -> None:
    """Set a logarithmic axis that has at least three labels and spans at least a decade."""
    from matplotlib.ticker import FuncFormatter, LogLocator

    ax.set(**{f"{axis}scale": "log"})
    target = ax.xaxis if axis == "x" else ax.yaxis
    low, high = ax.get_xlim() if axis == "x" else ax.get_ylim()
    if high / low < 10:
        middle = (low * high) ** 0.5
        low, high = middle / 10**0.5, middle * 10**0.5
        ax.set(**{f"{axis}lim": (low, high)})
    ax.minorticks_off()
    steps = (1,) if high / low > 1e3 else (1, 3) if high / low > 50 else (1, 2, 5)
    target.set_major_locator(LogLocator(subs=steps, numticks=8))
    target.set_major_formatter(FuncFormatter(lambda value, _: magnitude(value)))


def magnitude(value: Any) -> str:
    """Return the tick label of a number: ``0.5``, ``20``, ``3k``, ``40M``."""
    for unit, name in ((1e9, "G"), (1e6, "M"), (1e3, "k")):
        if abs(value) >= unit:
            return f"{value / unit:g}{name}"
    return f"{value:g}"
