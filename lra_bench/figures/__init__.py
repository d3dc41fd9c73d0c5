"""Figures drawn from records, selected by name."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from lra_bench.contracts import UserError

from . import (
    abilities,
    depth_by_slice,
    evaluation_knobs,
    extrapolation,
    heat_map,
    learning_curves,
    loss_by_position,
    middle_phase,
    minimal_pairs,
    ranks,
    rate_search,
    score_vs_depth,
    score_vs_growth,
    score_vs_length,
    score_vs_memory,
    score_vs_speed,
    score_vs_state,
    slices,
    speed_vs_length,
)
from .contract import FigureModule
from .style import check_output, save, width_inches
from .style import style as figure_style

if TYPE_CHECKING:
    import pandas as pd

    from lra_bench.records.schema import Record

FIGURES: dict[str, FigureModule] = {
    "score_vs_speed": score_vs_speed,
    "middle_phase": middle_phase,
    "score_vs_memory": score_vs_memory,
    "depth_by_slice": depth_by_slice,
    "rate_search": rate_search,
    "abilities": abilities,
    "speed_vs_length": speed_vs_length,
    "score_vs_depth": score_vs_depth,
    "score_vs_growth": score_vs_growth,
    "score_vs_length": score_vs_length,
    "loss_by_position": loss_by_position,
    "learning_curves": learning_curves,
    "slices": slices,
    "minimal_pairs": minimal_pairs,
    "extrapolation": extrapolation,
    "evaluation_knobs": evaluation_knobs,
    "score_vs_state": score_vs_state,
    "heat_map": heat_map,
    "ranks": ranks,
}
"""Modules of the figures by name; those that are drawn in the shortest time come first, so that files appear soon."""


class NothingToDrawError(UserError):
    """Raised if no record contains the data of a figure; the message states what to run."""


def tabulate(name: str, records: Sequence[Record]) -> pd.DataFrame:
    """Return the data of one figure.

    Records that lack its data are excluded, and one line on stderr reports their number and the reasons. Raises
    ``NothingToDrawError`` if no record remains, and ``UserError`` if there is no figure called ``name``.
    """
    from lra_bench.progress import say

    module = _module(name)
    reasons = module.exclusions(records)
    usable = [record for record, reason in zip(records, reasons, strict=True) if not reason]
    counts = Counter(reason for reason in reasons if reason)
    summary = ", ".join(f"{count:,} {reason}" for reason, count in counts.most_common())
    if not usable:
        raise NothingToDrawError(f"plot {name}: no record to draw ({summary or 'there are no records'}); {module.RUN}")
    if counts:
        say(f"{name}: {counts.total():,} of {len(records):,} records excluded ({summary})")
    data = module.table(usable)
    if data.empty:
        raise NothingToDrawError(f"plot {name}: {len(usable):,} records contain no data to draw; {module.RUN}")
    return data


def render(name: str, data: pd.DataFrame, folder: Path, width: str = "two", pdf: bool = True) -> list[Path]:
    """Draw the data of one figure to files in ``folder`` as ``draw`` does, and return the paths."""
    module, inches = _module(name), width_inches(width)
    with figure_style():
        return [
            path
            for sheet in module.draw(data, inches)
            for path in save(sheet.pages, sheet.data, folder, f"{name}-{sheet.name}", pdf)
        ]


def draw(name: str, records: Sequence[Record], folder: Path, width: str = "two", pdf: bool = True) -> list[Path]:
    """Draw one figure to files in ``folder``: PDF, PNG and the data as CSV.

    One set of files is written for each protocol, and for each hardware if the figure shows speed or memory. Records
    that lack the data of the figure are excluded, and one line on stderr reports their number and the reasons.

    Args:
        name: The name of the figure, a key of ``FIGURES``.
        records: The records to draw.
        folder: The output folder, created if it does not exist.
        width: The width of the figure, ``one`` or ``two`` columns of a paper.
        pdf: Whether to write a PDF in addition to PNG and CSV.

    Returns:
        The paths of the written files.

    Raises:
        NothingToDrawError: If no record contains the data of the figure.
        UserError: If ``name`` or ``width`` is unknown, or if the folder cannot be written.
    """
    check(name, width)
    check_output(folder)
    written = render(name, tabulate(name, records), folder, width, pdf)
    if not written:
        raise NothingToDrawError(f"plot {name}: {len(records):,} records contain no data to draw; {_module(name).RUN}")
    return written


def check(name: str, width: str) -> None:
    """Raise ``UserError`` if the figure or the width is unknown."""
    _module(name)
    width_inches(width)


def _module(name: str) -> FigureModule:
    from lra_bench.build import suggest

    if name not in FIGURES:
        raise UserError(f"plot {name}: unknown figure{suggest(name, set(FIGURES))}")
    return FIGURES[name]
