"""How figures look: sizes, type, and one colour and marker per model, the same in every figure."""

from __future__ import annotations

import zlib
from collections.abc import Callable, Iterable, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from lra_bench.contracts import UserError
from lra_bench.files import replacing, why

if TYPE_CHECKING:
    import pandas as pd
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

COLUMN_INCHES = 3.4
PAGE_INCHES = 7.0
LEGEND_ROW_INCHES = 0.165
LEGEND_HANDLE_INCHES, LEGEND_LETTER_INCHES = 0.5, 0.052
GREY = "#767676"

# Okabe and Ito's colours, told apart by colour-blind readers, without the yellow that paper swallows.
BLACK = "#000000"
COLOURS = ("#D55E00", "#0072B2", "#009E73", "#CC79A7", "#E69F00", "#56B4E9")
MARKERS = ("s", "^", "D", "v", "P", "X", "<", ">", "p", "h")
LINES = ("-", "--", "-.", (0, (3, 1, 1, 1, 1, 1)), ":")

# Black is the reference's own. Models met most often have looks of their own too; all others' follow from their name.
REFERENCE = "transformer"
KNOWN = (
    "local", "performer", "linear", "longformer", "bigbird", "linformer",
    "reformer", "nystromformer", "sparse", "synthesizer", "sinkhorn", "luna", "s4",
)  # fmt: skip
CONTROLS = ("bag_of_tokens",)

SETTINGS: dict[str, Any] = {
    "font.size": 8,
    "axes.titlesize": 8,
    "axes.labelsize": 8,
    "xtick.labelsize": 7,
    "ytick.labelsize": 7,
    "legend.fontsize": 7,
    "legend.frameon": False,
    "legend.borderpad": 0.2,
    "legend.handlelength": 2.6,
    "lines.linewidth": 1.2,
    "lines.markersize": 3.8,
    "axes.linewidth": 0.6,
    "axes.spines.top": False,
    "axes.spines.right": False,
    "axes.grid": True,
    "grid.linewidth": 0.4,
    "grid.color": "#dddddd",
    "xtick.major.width": 0.6,
    "ytick.major.width": 0.6,
    "xtick.minor.width": 0.4,
    "ytick.minor.width": 0.4,
    "savefig.dpi": 300,
    "text.usetex": False,
    "pdf.fonttype": 42,  # outlines that editors and journals can read
}


@dataclass(frozen=True)
class Look:
    """Colour, marker and line of one variant; markers are filled or ``hollow``."""

    colour: str
    marker: str
    line: Any
    hollow: bool = False

    def options(self) -> dict[str, Any]:
        """The look as matplotlib's keyword arguments."""
        face = {"markerfacecolor": "white"} if self.hollow else {}
        return {"color": self.colour, "marker": self.marker, "linestyle": self.line, **face}


def style() -> AbstractContextManager[None]:
    """Settings of the house for figures made inside the context; matplotlib's own come back after it."""
    import matplotlib

    settings: Any = SETTINGS
    return matplotlib.rc_context(settings)


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


def legend_below(figure: Figure, axes: Iterable[Axes], bottom: float, columns: int, title: str | None = None) -> None:
    """One legend for all ``axes``, centred, its lower edge ``bottom`` inches up, ``legend_inches`` high."""
    handles = {label: handle for ax in axes for handle, label in zip(*ax.get_legend_handles_labels(), strict=True)}
    if handles:
        figure.legend(
            handles.values(), handles.keys(), loc="lower center", ncols=columns, title=title, title_fontsize=7,
            alignment="left", bbox_to_anchor=(0.5, bottom / figure.get_size_inches()[1]), borderaxespad=0.0,
        )  # fmt: skip


def legend_columns(entries: Sequence[str], width: float) -> int:
    """How many columns, three at most, a legend of ``entries`` fills in ``width`` inches."""
    column = LEGEND_HANDLE_INCHES + LEGEND_LETTER_INCHES * max(map(len, entries), default=0)
    return max(1, min(3, int(width / column)))


def legend_inches(rows: int) -> float:
    """Height to keep for a legend of so many rows, its title counted as one."""
    return LEGEND_ROW_INCHES * rows + 0.12


def looks(variants: Iterable[tuple[str, str]]) -> dict[tuple[str, str], Look]:
    """The look of each (model, variant): colour and marker by model alone, line and filling by variant."""
    found: dict[tuple[str, str], Look] = {}
    counts: dict[str, int] = {}
    for model, variant in sorted(set(variants), key=lambda pair: (pair[0], len(pair[1]), pair[1])):
        number = counts.get(model, 0)
        counts[model] = number + 1
        found[model, variant] = Look(*colour_and_marker(model), LINES[number % len(LINES)], number >= len(LINES))
    return found


def colour_and_marker(model: str) -> tuple[str, str]:
    """The colour and marker of a model in every figure, whatever else is drawn; controls are grey."""
    if model == REFERENCE:
        return BLACK, "o"
    if model in CONTROLS:
        return GREY, "x"
    if model in KNOWN:
        index = KNOWN.index(model)
        return COLOURS[index % len(COLOURS)], MARKERS[index % len(MARKERS)]
    digest = zlib.crc32(model.encode())
    return COLOURS[digest % len(COLOURS)], MARKERS[digest // len(COLOURS) % len(MARKERS)]


def save(figure: Figure, data: pd.DataFrame, folder: Path, name: str) -> list[Path]:
    """Write ``figure`` as PDF and PNG and what it shows as CSV, each whole or not at all; the paths.

    The same figure gives the same bytes: no date is written. Raises ``UserError`` where the folder cannot be written.
    """
    writers: dict[str, Callable[[Path], Any]] = {
        "pdf": lambda path: figure.savefig(path, format="pdf", metadata={"CreationDate": None}),
        "png": lambda path: figure.savefig(path, format="png"),
        "csv": lambda path: data.to_csv(path, index=False),
    }
    try:
        for suffix, writer in writers.items():
            with replacing(folder / f"{name}.{suffix}") as path, style():
                writer(path)
    except OSError as error:
        raise UserError(f"--output {folder}: {why(error)}; choose another folder with --output") from error
    return [folder / f"{name}.{suffix}" for suffix in writers]
