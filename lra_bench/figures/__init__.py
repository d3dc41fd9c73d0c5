"""Figures that rebuild from the records alone, by name."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from lra_bench.contracts import UserError

from . import (
    efficiency_length,
    evaluation_knobs,
    extrapolation,
    heat_map,
    learning_curves,
    loss_by_position,
    ranks,
    score_vs_growth,
    score_vs_length,
    score_vs_speed,
    speed_vs_length,
)
from .contract import FigureModule

if TYPE_CHECKING:
    import pandas as pd

    from lra_bench.records.schema import Record

FIGURES: dict[str, FigureModule] = {
    "score_vs_speed": score_vs_speed,
    "speed_vs_length": speed_vs_length,
    "extrapolation": extrapolation,
    "evaluation_knobs": evaluation_knobs,
    "score_vs_length": score_vs_length,
    "loss_by_position": loss_by_position,
    "learning_curves": learning_curves,
    "heat_map": heat_map,
    "ranks": ranks,
    "score_vs_growth": score_vs_growth,
    "efficiency_length": efficiency_length,
}
"""The figures that ``plot`` draws, in this order."""


class NothingToDrawError(UserError):
    """No record holds what a figure shows; the sentence says what to run."""


def tabulate(name: str, records: Sequence[Record]) -> pd.DataFrame:
    """The numbers of one figure. Records without what it shows are left out, which one line on stderr says.

    Raises ``NothingToDrawError`` where no record is left, ``UserError`` on a name that is none.
    """
    from lra_bench.progress import say

    module = _module(name)
    reasons = module.lacking(records)
    usable = [record for record, reason in zip(records, reasons, strict=True) if not reason]
    lacking = Counter(reason for reason in reasons if reason)
    told = ", ".join(f"{count:,} {reason}" for reason, count in lacking.most_common())
    if not usable:
        raise NothingToDrawError(f"plot {name}: no record to draw ({told or 'none at all'}); {module.RUN}")
    if lacking:
        say(f"{name}: {lacking.total():,} of {len(records):,} records left out ({told})")
    data = module.table(usable)
    if data.empty:
        raise NothingToDrawError(f"plot {name}: {len(usable):,} records hold nothing to draw; {module.RUN}")
    return data


def render(name: str, data: pd.DataFrame, folder: Path, width: str = "two", pdf: bool = True) -> list[Path]:
    """Draw the numbers of one figure into ``folder``, as ``draw`` does; the paths."""
    from .style import save, width_inches

    module, inches = _module(name), width_inches(width)
    return [
        path
        for sheet in module.draw(data, inches)
        for path in save(sheet.pages, sheet.data, folder, f"{name}-{sheet.name}", pdf)
    ]


def draw(name: str, records: Sequence[Record], folder: Path, width: str = "two", pdf: bool = True) -> list[Path]:
    """Draw one figure into ``folder``: PDF, PNG and data as CSV for each protocol, and hardware where speed is shown.

    ``width`` is ``one`` or ``two`` columns of a paper; without ``pdf`` no PDF is written. Records without what it shows
    are left out, which one line on stderr says. Returns the paths. Raises ``NothingToDrawError`` where no record is
    left, ``UserError`` on names that are none and where the folder cannot be written.
    """
    from .style import width_inches

    width_inches(width)  # to hear of a wrong one now
    written = render(name, tabulate(name, records), folder, width, pdf)
    if not written:
        raise NothingToDrawError(f"plot {name}: {len(records):,} records hold nothing to draw; {_module(name).RUN}")
    return written


def _module(name: str) -> FigureModule:
    from lra_bench.build import suggest

    if name not in FIGURES:
        raise UserError(f"plot {name}: there is no such figure{suggest(name, set(FIGURES))}")
    return FIGURES[name]
