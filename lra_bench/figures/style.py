"""How figures look: sizes, type, and text measured before it is placed, so that nothing is cut off."""

from __future__ import annotations

import functools
from collections.abc import Iterable
from contextlib import AbstractContextManager, ExitStack
from pathlib import Path
from typing import TYPE_CHECKING, Any

from lra_bench.contracts import UserError
from lra_bench.runtime.files import replacing, why
from lra_bench.runtime.safe_text import without_formulas

if TYPE_CHECKING:
    import pandas as pd
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

COLUMN_INCHES = 3.4
PAGE_INCHES = 7.0
PAGE_HEIGHT_INCHES = 9.2
WIDTHS = {"one": COLUMN_INCHES, "two": PAGE_INCHES}
SMALL, TINY = 7.0, 6.0  # points
POINTS = 72.0  # to the inch
LINE_SPACING = 1.25

SETTINGS: dict[str, Any] = {
    "font.size": 8,
    "axes.titlesize": 8,
    "axes.titlepad": 4,
    "axes.titley": 1.0,  # where it stands anyhow; to look for a better place takes as long as to draw all ticks
    "axes.labelsize": 8,
    "axes.labelpad": 2,
    "xtick.labelsize": SMALL,
    "ytick.labelsize": SMALL,
    "lines.linewidth": 1.2,
    "lines.markersize": 3.8,
    "lines.markeredgewidth": 0.8,
    "axes.linewidth": 0.6,
    "axes.spines.top": False,
    "axes.spines.right": False,
    "axes.axisbelow": True,
    "axes.grid": True,
    "grid.linewidth": 0.4,
    "grid.color": "#dddddd",
    "xtick.major.width": 0.6,
    "ytick.major.width": 0.6,
    "xtick.minor.width": 0.4,
    "ytick.minor.width": 0.4,
    "savefig.dpi": 200,
    "text.usetex": False,
    "text.hinting": "none",  # letters keep their shapes at 200 dpi without it, in a tenth less time
    "pdf.fonttype": 42,  # outlines that editors and journals can read
}


def style() -> AbstractContextManager[None]:
    """The settings of all figures, for the context; those of matplotlib are restored after it."""
    import matplotlib

    settings: Any = SETTINGS
    return matplotlib.rc_context(settings)


def width_inches(width: str) -> float:
    """The width of a figure over ``one`` or ``two`` columns; ``UserError`` on any other."""
    if width not in WIDTHS:
        raise UserError(f"--width {width}: choose one or two columns of a paper ({', '.join(WIDTHS)})")
    return WIDTHS[width]


def new_figure(width: float, height: float) -> Figure:
    """An empty figure, inches wide and high, outside pyplot and its global state."""
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    figure = Figure(figsize=(width, height))
    FigureCanvasAgg(figure)
    return figure


def panel(figure: Figure, left: float, bottom: float, width: float, height: float, **options: Any) -> Axes:
    """Axes of a size and place in inches. matplotlib's own layout solver moves things by a hair from run to run."""
    across, up = figure.get_size_inches()
    return figure.add_axes((left / across, bottom / up, width / across, height / up), **options)


@functools.lru_cache(maxsize=10_000)
def text_inches(text: str, points: float = SMALL) -> float:
    """How wide a text is drawn at a size in points, of its widest line."""
    from matplotlib.font_manager import FontProperties

    # The width depends on the settings, and is remembered: it must not be that of other settings.
    with style():
        font = FontProperties(size=points)
        return max(_renderer().get_text_width_height_descent(line, font, False)[0] for line in text.split("\n")) / 300


def line_inches(points: float = SMALL) -> float:
    """The height of a line of text at a size in points, with what separates it from the next."""
    return points * LINE_SPACING / POINTS


@functools.lru_cache(maxsize=10_000)
def wrapped(text: str, inches: float, points: float = SMALL) -> str:
    """``text`` over as many lines as it takes to stay under a width, broken at spaces, after ``_``, else anywhere."""
    if text_inches(text, points) <= inches:
        return text
    lines = [""]
    for word in text.split(" "):
        longer = f"{lines[-1]} {word}" if lines[-1] else word
        if text_inches(longer, points) <= inches:
            lines[-1] = longer
        else:
            lines += _cut(word, inches, points)
    return "\n".join(line for line in lines if line)


def _cut(word: str, inches: float, points: float) -> list[str]:
    parts = []
    while text_inches(word, points) > inches and len(word) > 1:
        fits = [end for end in range(1, len(word)) if text_inches(word[:end], points) <= inches] or [1]
        end = next((end for end in reversed(fits) if word[end - 1] in "_=,("), fits[-1])
        parts.append(word[:end])
        word = word[end:]
    return [*parts, word]


@functools.cache
def _renderer() -> Any:
    from matplotlib.backends.backend_agg import RendererAgg

    return RendererAgg(1, 1, 300)


def save(pages: Iterable[Figure], data: pd.DataFrame, folder: Path, name: str, pdf: bool = True) -> list[Path]:
    """Write pages as one PDF, as PNG each (the second as ``name-2``), and what they show as CSV; the paths.

    Without ``pdf`` only as PNG, which takes half as long.

    Pages are taken one after the other and not kept. Each file appears whole or not at all. The same figure gives the
    same bytes: no date is written. Raises ``UserError`` where the folder cannot be written.
    """
    from matplotlib.backends.backend_pdf import PdfPages

    pictures = []
    try:
        # Fonts are written when the document is closed, so the style must last until then.
        with style(), ExitStack() as written:
            document = None
            if pdf:
                path = written.enter_context(replacing(folder / f"{name}.pdf"))
                document = written.enter_context(PdfPages(path, metadata={"CreationDate": None}))
            for number, page in enumerate(pages, start=1):
                pictures.append(folder / f"{name if number == 1 else f'{name}-{number}'}.png")
                with replacing(pictures[-1]) as aside:
                    if document is not None:
                        document.savefig(page)
                    # The default level takes several times as long.
                    page.savefig(aside, format="png", pil_kwargs={"compress_level": 1})
        with replacing(folder / f"{name}.csv") as path:
            without_formulas(data).to_csv(path, index=False)
    except OSError as error:
        raise UserError(f"--output {folder}: {why(error)}; choose another folder with --output") from error
    return [*([folder / f"{name}.pdf"] if pdf else []), *pictures, folder / f"{name}.csv"]
