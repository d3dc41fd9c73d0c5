"""Figures drawn from records, selected by name."""

from __future__ import annotations

import importlib
from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, cast

from lra_bench.contracts import UserError

from .style import check_output, width_inches
from .style import style as figure_style

if TYPE_CHECKING:
    import pandas as pd

    from lra_bench.contracts.measurement import ScoreOver
    from lra_bench.records.schema import Record

    from .contract import Figure

FIGURES: dict[str, str | Figure] = {
    path.partition(":")[2]: f"{__name__}.{path}"
    for path in (
        "heat_maps:heat_map", "ranks:ranks", "heat_maps:abilities", "losses:learning_curves", "costs:score_vs_cost",
        "costs:score_vs_speed", "costs:score_vs_growth", "losses:rate_search", "lengths:middle_phase", "gains:gain",
    )
}  # fmt: skip
"""Figures of no measurement by name: objects, or their modules and names."""


def figure_names() -> dict[str, str | Figure | tuple[ScoreOver, str]]:
    """Return what ``figure`` loads, by name: ``FIGURES`` and the figures that measurements declare."""
    from lra_bench.config.measurements import measurements

    declared = {
        each.partition(":")[2] if isinstance(each, str) else each.name: (
            each if isinstance(each, str) else (each, measurement.name)
        )
        for measurement in measurements().values()
        for each in measurement.figures
    }
    return {**FIGURES, **declared}


def figure(name: str) -> Figure:
    """Load a figure by name. Raises ``UserError`` if there is none called ``name``."""
    from lra_bench.build import suggest

    known = figure_names()
    if name not in known:
        raise UserError(f"plot {name}: unknown figure{suggest(name, set(known))}")
    found = known[name]
    if isinstance(found, tuple):
        from .costs import ScoreFigure

        return ScoreFigure(*found)
    if isinstance(found, str):
        module, _, attribute = found.partition(":")
        return cast("Figure", getattr(importlib.import_module(module), attribute))
    return found


def all_figures() -> dict[str, Figure]:
    """Load all figures and return them by name."""
    return {name: figure(name) for name in figure_names()}


class NothingToDrawError(UserError):
    """Raised if no record contains the data of a figure; the message states what to run."""


def tabulate(name: str, records: Sequence[Record]) -> pd.DataFrame:
    """Return the data of one figure.

    Records that lack its data are excluded, and one line on stderr reports their number and the reasons. Raises
    ``NothingToDrawError`` if no record remains, and ``UserError`` if there is no figure called ``name``.
    """
    from lra_bench.progress import say

    found = figure(name)
    reasons = found.exclusions(records)
    usable = [record for record, reason in zip(records, reasons, strict=True) if not reason]
    counts = Counter(reason for reason in reasons if reason)
    summary = ", ".join(f"{count:,} {reason}" for reason, count in counts.most_common())
    if not usable:
        none = summary or "there are no records"
        raise NothingToDrawError(f"plot {name}: no record to draw ({none}); {found.remedy}")
    if counts:
        say(f"{name}: {counts.total():,} of {len(records):,} records excluded ({summary})")
    data = found.table(usable)
    if data.empty:
        raise NothingToDrawError(f"plot {name}: {len(usable):,} records contain no data to draw; {found.remedy}")
    return data


def draw(
    name: str,
    records: Sequence[Record],
    folder: Path,
    width: str = "two",
    pdf: bool = True,
    models: Sequence[str] = (),
    tasks: Sequence[str] = (),
    font: str = "sans-serif",
) -> list[Path]:
    """Draw one figure of ``figure_names`` to files in ``folder``, one set for each of its sheets; return their paths.

    ``models`` and ``tasks`` are all names in ``records`` in the order of rows and legends, and of panels and columns;
    by default models are ordered by family. Without ``pdf`` only PNG, data as CSV, and caption as text and LaTeX are
    written. Raises ``NothingToDrawError`` if no record contains the data, and ``UserError`` if an argument is wrong or
    the folder cannot be written.
    """
    from .layout import save

    found, inches = figure(name), width_inches(width)
    check_output(folder)
    data = ordered(tabulate(name, records), models, tasks)
    content = found.caption.partition("\n")[0]
    with figure_style(font):
        return [path for sheet in found.draw(data, inches) for path in save(sheet, content, folder, name, pdf)]


def ordered(data: pd.DataFrame, models: Sequence[str], tasks: Sequence[str]) -> pd.DataFrame:
    """Return the data of a figure with models and tasks as categories in their order."""
    import pandas as pd

    for column, names in (("model", models), ("task", tasks)):
        if names:
            data = data.assign(**{column: pd.Categorical(data[column], list(names), ordered=True)})
    return data.sort_values("task", kind="stable") if tasks else data
