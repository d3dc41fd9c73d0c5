"""Sizes, fonts and ticks of figures, and the measurement of text before the layout."""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterable
from contextlib import AbstractContextManager
from pathlib import Path
from tempfile import TemporaryFile
from typing import TYPE_CHECKING, Any, Literal

from lra_bench.contracts import UserError
from lra_bench.runtime.files import why

if TYPE_CHECKING:
    from matplotlib.axes import Axes

COLUMN_INCHES, PAGE_INCHES = 3.4, 7.0
PAGE_HEIGHT_INCHES = 9.2
WIDTHS = {"one": COLUMN_INCHES, "two": PAGE_INCHES}
TITLE_POINTS, SMALL, TINY = 8.0, 7.0, 6.0
FONTS = {"sans-serif": "dejavusans", "serif": "dejavuserif"}
"""Fonts of formulas by family."""
POINTS = 72.0  # to the inch
LINE_SPACING = 1.25

SETTINGS: dict[str, Any] = {
    **dict.fromkeys(("font.size", "axes.titlesize"), 8),
    **dict.fromkeys(("axes.labelsize", "xtick.labelsize", "ytick.labelsize"), SMALL),
    **dict.fromkeys(("axes.linewidth", "xtick.major.width", "ytick.major.width"), 0.6),
    **dict.fromkeys(("grid.linewidth", "xtick.minor.width", "ytick.minor.width"), 0.4),
    **dict.fromkeys(("axes.spines.top", "axes.spines.right", "legend.frameon", "text.usetex"), False),
    **dict.fromkeys(("figure.autolayout", "figure.constrained_layout.use"), False),
    "axes.titlepad": 4,
    "axes.titley": 1.0,  # the default position; searching for a better one takes as long as drawing all ticks
    "axes.labelpad": 2,
    "lines.linewidth": 1.2,
    "lines.markersize": 3.8,
    "lines.markeredgewidth": 0.8,
    "axes.axisbelow": True,
    "axes.grid": True,
    "grid.color": "#dddddd",
    "legend.handlelength": 2.4,
    "legend.handletextpad": 0.6,
    "legend.columnspacing": 1.2,
    "legend.labelspacing": 0.25,
    "figure.constrained_layout.w_pad": 0.07,  # a tick label may get one more digit at the final height
    "savefig.dpi": 200,
    "text.parse_math": False,  # names of systems may contain dollar signs
    "text.hinting": "none",  # not needed at 200 dpi; saves a tenth of the time
    "pdf.fonttype": 42,  # TrueType fonts, required by editors and journals
}


def style(font: str | None = None) -> AbstractContextManager[None]:
    """Use the settings of all figures in the context; matplotlib's settings are restored at its end.

    Without a ``font``, one of ``FONTS``, that of the surrounding context is used. Raises ``UserError`` if there is no
    such font.
    """
    import matplotlib

    if font is not None and font not in FONTS:
        raise UserError(f"--font {font}: unknown font; choose {', '.join(FONTS)}")
    chosen = {"font.family": font, "mathtext.fontset": FONTS[font]} if font else {}
    settings: Any = {**SETTINGS, **chosen}
    return matplotlib.rc_context(settings)


def check_output(folder: Path) -> None:
    """Raise ``UserError`` if no file can be written to the output folder, or to where it would be created."""
    existing = next(path for path in (folder, *folder.absolute().parents) if path.exists())
    try:
        with TemporaryFile(dir=existing) as file:
            file.write(b"0" * 4096)  # an empty file can be created on a full disk
    except OSError as error:
        raise unwritable(folder, error) from error


def unwritable(folder: Path, error: OSError) -> UserError:
    """Return the error that a file in the output folder cannot be written."""
    return UserError(f"--output {folder}: {why(error)}; choose another folder with --output")


def width_inches(width: str) -> float:
    """Return the width in inches of a figure over ``one`` or ``two`` columns. Raises ``UserError`` on other values."""
    if width not in WIDTHS:
        raise UserError(f"--width {width}: unknown width; choose {', '.join(WIDTHS)} (columns of a paper)")
    return WIDTHS[width]


def text_inches(text: str, points: float = SMALL) -> float:
    """Return the width in inches of the widest line of a text at a font size in points."""
    import matplotlib

    family = matplotlib.rcParams["font.family"][0]
    return max(_em(line, family) for line in text.split("\n")) * points / POINTS


@functools.cache
def _em(line: str, family: str) -> float:
    """Return the width of a line of text in a family of fonts in units of the font size."""
    from matplotlib.font_manager import FontProperties
    from matplotlib.textpath import text_to_path

    size = 100
    font = FontProperties(family=[family], size=size)
    return float(text_to_path.get_text_width_height_descent(line, font, ismath=False)[0]) / size


def line_inches(points: float = SMALL) -> float:
    """Return the height in inches of a line of text at a font size in points, including line spacing."""
    return points * LINE_SPACING / POINTS


def length_name(length: float) -> str:
    """Return the tick label of a length in tokens: ``4k``, ``500``."""
    return f"{length / 1024:.0f}k" if length % 1024 == 0 else f"{length:,.0f}"


def log_ticks(ax: Axes, values: Iterable[float], name: Callable[[float], str] | None = None) -> None:
    """Set a logarithmic x axis from the smallest to the largest value, with ticks at all of them and their names.

    Without a function ``name`` values are lengths in tokens, and ticks are at powers of two.
    """
    from matplotlib.ticker import FixedLocator, FuncFormatter, LogLocator

    at = sorted(values)
    ax.set_xscale("log", base=2)
    ax.set_xlim(at[0] / 1.45, at[-1] * 1.45)  # at least one power of two
    ax.minorticks_off()
    ax.xaxis.set_major_locator(FixedLocator(at) if name else LogLocator(base=2, numticks=8))
    ax.xaxis.set_major_formatter(FuncFormatter(lambda value, _: (name or length_name)(value)))


def logarithmic(ax: Axes, axis: Literal["x", "y"], ends: tuple[float, float] | None = None) -> None:
    """Set a logarithmic axis that has at least three labels and spans at least a decade, a little beyond ``ends``."""
    from matplotlib.ticker import FuncFormatter, LogLocator

    if ends is not None:
        ax.set(**{f"{axis}lim": (ends[0] / 1.3, ends[1] * 1.3)})
    ax.set(**{f"{axis}scale": "log"})
    target = ax.xaxis if axis == "x" else ax.yaxis
    low, high = ax.get_xlim() if axis == "x" else ax.get_ylim()
    if high / low < 10:
        low, high = (low * high / 10) ** 0.5, (low * high * 10) ** 0.5
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
