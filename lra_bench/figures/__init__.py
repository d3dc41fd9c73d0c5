"""Figures drawn from records, selected by name, and from the records of a results folder."""

from __future__ import annotations

import gc
import importlib
import os
from collections import Counter
from collections.abc import Generator, Iterable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, cast

from lra_bench.contracts import UserError

from .style import check_output, width_inches
from .style import style as figure_style

if TYPE_CHECKING:
    import pandas as pd

    from lra_bench.contracts.measurement import ScoreOver
    from lra_bench.records.schema import Record
    from lra_bench.tables.naming import Names

    from .contract import Figure

FIGURES: dict[str, str | Figure] = {
    path.partition(":")[2]: f"{__name__}.{path}"
    for path in (
        "heat_maps:heat_map", "ranks:ranks", "heat_maps:abilities", "losses:learning_curves", "costs:score_vs_cost",
        "costs:score_vs_speed", "costs:score_vs_growth", "losses:rate_search", "lengths:middle_phase", "ranks:gain",
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
    from lra_bench.records.machines import combine_machines

    found = figure(name)
    records = records if found.of_machine else combine_machines(records)
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


def draw_stored(
    name: Names,
    results: str | os.PathLike[str] | None = None,
    reference: str | os.PathLike[str] | None = None,
    tasks: Names = None,
    protocol: str | None = None,
    width: str = "two",
    output: Path | None = None,
    everything: bool = False,
    models: Names = None,
    font: str = "sans-serif",
) -> Generator[Path]:
    """Draw figures, or with ``all`` every figure, from the records of a results folder and of the reference boards.

    Yields the paths of the files after each figure. The arguments are those of ``lra_bench.plot``. Raises ``UserError``
    if an argument is wrong, there is no record to draw, or a figure could not be drawn.
    """
    from lra_bench.progress import say
    from lra_bench.records.reference import load_records
    from lra_bench.tables.naming import current, explain_hidden, names_of, select, task_order

    names = names_of(name)
    for each in names:
        if each != "all":
            figure(each)
    width_inches(width)
    root, loaded = load_records(results, reference)
    records = select(loaded, tasks, protocol, models)
    if not records:
        none = f"--results {root}: contains no records to draw; run lra-bench bench first"
        raise UserError(explain_hidden(loaded, tasks, protocol) or none)
    folder = output or root / "figures"
    options = {"width": width, "models": names_of(models), "tasks": task_order(records, tasks), "font": font}
    if not (protocol or everything):
        records, hidden = current(records)
        if hidden:
            say(hidden)
    if len(names) == 1 and "all" not in names:
        yield from draw(names[0], records, folder, **options)  # type: ignore[arg-type]
        return
    failed = []
    for each, outcome in draw_all(records, folder, () if "all" in names else names, **options):
        if isinstance(outcome, Exception):
            say(f"plot {each}: {outcome}")
            failed.append(each)
        else:
            yield from outcome
    if failed:
        raise UserError(
            f"plot: {', '.join(failed)} could not be drawn, see the messages above; all other figures were written"
        )


def draw_all(
    records: Sequence[Record], folder: Path, names: Iterable[str] | None = None, **options: Any
) -> Generator[tuple[str, Sequence[Path] | Exception]]:
    """Draw figures, by default all, with the ``options`` of ``draw``; yield the name of each with its paths.

    The exception that was raised is yielded instead of paths. Figures without data are reported on stderr. Ctrl-C ends
    drawing even if a library catches ``KeyboardInterrupt``. Raises ``UserError`` if the folder cannot be written.
    """
    from lra_bench.progress import bar, say
    from lra_bench.runtime.signals import deferred, interrupt

    check_output(folder)
    names = list(names or figure_names())
    with deferred(act=interrupt) as interrupted, bar(len(names), "drawing", unit="figures") as advance:
        for name in names:
            outcome: Sequence[Path] | Exception = ()
            gc.freeze()  # collections while drawing do not search the records
            try:
                outcome = draw(name, records, folder, **options)
            except NothingToDrawError as error:
                say(str(error))
            except UserError as error:
                outcome = error
            except Exception as error:
                outcome = RuntimeError(f"{type(error).__name__}: {error}")
            finally:
                gc.collect()  # drawn figures are reference cycles of megabytes
                gc.unfreeze()
            # A library may catch KeyboardInterrupt, or raise another exception during its cleanup.
            if interrupted():
                raise KeyboardInterrupt
            yield name, outcome
            advance(1, name)
