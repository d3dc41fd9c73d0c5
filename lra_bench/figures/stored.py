"""Draw figures of the records of a results folder."""

from __future__ import annotations

import gc
import os
from collections.abc import Generator, Iterable, Sequence
from pathlib import Path
from typing import Any

from lra_bench.contracts import UserError
from lra_bench.progress import bar, say
from lra_bench.records.reference import load_records
from lra_bench.records.schema import Record
from lra_bench.runtime.signals import deferred, interrupt
from lra_bench.tables.naming import Names, current, explain_hidden, names_of, select, task_order

from . import NothingToDrawError, draw, figure, figure_names
from .style import check_output, width_inches

ALL = "all"
"""Name that stands for all figures."""

Outcome = Sequence[Path] | Exception


def draw_stored(
    name: str,
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
    """Draw a figure, or with ``all`` every figure, from the records of a results folder and of the reference boards.

    Args:
        name: The name of the figure.
        results: The results folder, by default that of ``results_root``.
        reference: The folder of reference boards, by default that of ``reference_root``.
        tasks: The tasks and groups of tasks to draw, in the order of panels and columns, by default all.
        protocol: The protocol, by default all that are ranked, in their newest versions.
        width: The width in columns of a paper, ``one`` or ``two``.
        output: The folder of the files, by default ``figures`` in the results folder.
        everything: Whether to draw also the records that ``current`` leaves out.
        models: The names of the models to draw, in the order of rows and legends, by default all.
        font: The font of all text, ``sans-serif`` or ``serif``.

    Yields:
        The paths of the files, after each figure.

    Raises:
        UserError: If an argument is wrong, there is no record to draw, or a figure could not be drawn.
    """
    if name != ALL:
        figure(name)
    width_inches(width)
    root, loaded = load_records(results, reference)
    records = select(loaded, tasks, protocol, models)
    if not records:
        none = f"--results {root}: contains no records to draw; run lra-bench bench first"
        raise UserError(explain_hidden(loaded, tasks, protocol) or none)
    folder = output or root / "figures"
    options: dict[str, Any] = {
        "width": width,
        "models": names_of(models),
        "tasks": task_order(records, tasks),
        "font": font,
    }
    if not (protocol or everything):
        records, hidden = current(records)
        if hidden:
            say(hidden)
    if name != ALL:
        yield from draw(name, records, folder, **options)
        return
    failed = []
    for each, outcome in draw_all(records, folder, **options):
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
    records: Sequence[Record],
    folder: Path,
    names: Iterable[str] | None = None,
    **options: Any,
) -> Generator[tuple[str, Outcome]]:
    """Draw figures and yield the name of each with its paths, or with the exception that was raised.

    Figures without data are reported on stderr. Ctrl-C ends drawing even if a library catches ``KeyboardInterrupt``.

    Args:
        records: The records to draw.
        folder: The output folder.
        names: The names of the figures, by default all.
        options: Further arguments of ``draw``.

    Yields:
        The name of a figure, and the paths of its files or the exception.

    Raises:
        UserError: If the folder cannot be written.
    """
    check_output(folder)
    names = list(names or figure_names())
    with deferred(act=interrupt) as interrupted, bar(len(names), "drawing", unit="figures") as advance:
        for name in names:
            outcome: Outcome = ()
            try:
                outcome = draw(name, records, folder, **options)
            except NothingToDrawError as error:
                say(str(error))
            except UserError as error:
                outcome = error
            except Exception as error:
                outcome = RuntimeError(f"{type(error).__name__}: {error}")
            # A library may catch KeyboardInterrupt, or raise another exception during its cleanup.
            if interrupted():
                raise KeyboardInterrupt
            gc.collect()  # drawn figures are reference cycles of megabytes
            yield name, outcome
            advance(1, name)
