"""Sizes and fonts of figures, and the measurement of text before the layout."""

from __future__ import annotations

import functools
from collections.abc import Iterable, Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from tempfile import TemporaryFile
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

_active = False  # whether matplotlib has the settings of figures

SETTINGS: dict[str, Any] = {
    "font.size": 8,
    "axes.titlesize": 8,
    "axes.titlepad": 4,
    "axes.titley": 1.0,  # the default position; searching for a better one takes as long as drawing all ticks
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
    "text.hinting": "none",  # not needed at 200 dpi; saves a tenth of the time
    "pdf.fonttype": 42,  # TrueType fonts, required by editors and journals
}


LAYOUT_TABLES = ["GDEF", "GPOS", "GSUB"]
"""Tables of a font that are not needed in a PDF, which contains the glyphs and positions of its texts."""


@functools.cache
def _omit_layout_tables() -> None:
    """Configure fontTools to leave ``LAYOUT_TABLES`` out of embedded fonts; reducing them takes most of its time."""
    from fontTools.subset import Options

    # The setting is not public; without it only the time differs.
    Options._drop_tables_default = [*getattr(Options, "_drop_tables_default", ()), *LAYOUT_TABLES]


@contextmanager
def style() -> Iterator[None]:
    """Use the settings of all figures in the context; matplotlib's settings are restored at its end.

    A context inside another one has no effect, because copying the settings takes longer than measuring a text.
    """
    global _active
    if _active:
        yield
        return
    import matplotlib

    settings: Any = SETTINGS
    with matplotlib.rc_context(settings):
        _active = True
        try:
            yield
        finally:
            _active = False


def check_output(folder: Path) -> None:
    """Raise ``UserError`` if no file can be written to the output folder, or to where it would be created."""
    existing = next(path for path in (folder, *folder.absolute().parents) if path.exists())
    try:
        with TemporaryFile(dir=existing) as file:
            file.write(b"0" * 4096)  # an empty file can be created on a full disk
    except OSError as error:
        raise _unwritable(folder, error) from error


def _unwritable(folder: Path, error: OSError) -> UserError:
    return UserError(f"--output {folder}: {why(error)}; choose another folder with --output")


def width_inches(width: str) -> float:
    """Return the width in inches of a figure over ``one`` or ``two`` columns. Raises ``UserError`` on other values."""
    if width not in WIDTHS:
        raise UserError(f"--width {width}: unknown width; choose {', '.join(WIDTHS)} (columns of a paper)")
    return WIDTHS[width]


def new_figure(width: float, height: float) -> Figure:
    """Return an empty figure of a size in inches, independent of pyplot and its global state."""
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    figure = Figure(figsize=(width, height))
    FigureCanvasAgg(figure)
    return figure


def panel(figure: Figure, left: float, bottom: float, width: float, height: float, **options: Any) -> Axes:
    """Add axes of a size and position in inches.

    matplotlib's layout solver is not used because its results differ slightly from run to run.
    """
    across, up = figure.get_size_inches()
    return figure.add_axes((left / across, bottom / up, width / across, height / up), **options)


def text_inches(text: str, points: float = SMALL) -> float:
    """Return the width in inches of the widest line of a text at a font size in points.

    It is the sum of the widths of the characters, which takes much less time than the layout of the text; kerning only
    makes texts narrower.
    """
    return max(sum(map(_em, line)) for line in text.split("\n")) * points / POINTS


@functools.cache
def _em(character: str) -> float:
    """Return the width of a character in units of the font size."""
    from matplotlib.font_manager import FontProperties, findfont, get_font
    from matplotlib.ft2font import LoadFlags

    # The width depends on the settings and is cached, so it must always be measured with the settings of figures.
    with style():
        font = get_font(findfont(FontProperties()))
    return font.load_char(ord(character), flags=LoadFlags.NO_SCALE).horiAdvance / font.units_per_EM


def line_inches(points: float = SMALL) -> float:
    """Return the height in inches of a line of text at a font size in points, including line spacing."""
    return points * LINE_SPACING / POINTS


@functools.lru_cache(maxsize=10_000)
def wrapped(text: str, inches: float, points: float = SMALL) -> str:
    """Return ``text`` wrapped to a width in inches.

    Lines break at spaces. A longer word breaks after ``_``, ``=``, ``,`` or ``(``, otherwise anywhere.
    """
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


def save(pages: Iterable[Figure], data: pd.DataFrame, folder: Path, name: str, pdf: bool = True) -> list[Path]:
    """Write the pages of a figure as one PDF and one PNG each, and its data as CSV.

    Pages are drawn sequentially and not kept. Each file is written atomically. Equal figures result in equal bytes,
    because no date is written.

    Args:
        pages: The pages.
        data: The data of the figure.
        folder: The output folder.
        name: The file name without suffix; the PNG of the second page is ``name-2.png``.
        pdf: Whether to write the PDF. Without it, saving takes half as long.

    Returns:
        The paths of the written files.

    Raises:
        UserError: If the folder cannot be written.
    """
    from matplotlib.backends.backend_pdf import PdfPages

    images = []
    try:
        # Fonts are written when the document is closed, so it must be closed before the style is reset.
        with style(), ExitStack() as written:
            document = None
            if pdf:
                _omit_layout_tables()
                path = written.enter_context(replacing(folder / f"{name}.pdf"))
                document = written.enter_context(PdfPages(path, metadata={"CreationDate": None}))
            for number, page in enumerate(pages, start=1):
                images.append(folder / f"{name if number == 1 else f'{name}-{number}'}.png")
                with replacing(images[-1]) as temporary:
                    if document is not None:
                        document.savefig(page)
                    # The default compression level takes several times as long.
                    page.savefig(temporary, format="png", pil_kwargs={"compress_level": 1})
        with replacing(folder / f"{name}.csv") as path:
            without_formulas(data).to_csv(path, index=False)
    except OSError as error:
        raise _unwritable(folder, error) from error
    return [*([folder / f"{name}.pdf"] if pdf else []), *images, folder / f"{name}.csv"]
