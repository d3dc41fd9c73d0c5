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

ALL = "all"  # name that stands for all figures


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

    Yields the paths of the files after each figure. The arguments are those of ``lra_bench.plot``. Raises ``UserError``
    if an argument is wrong, there is no record to draw, or a figure could not be drawn.
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
    options = {"width": width, "models": names_of(models), "tasks": task_order(records, tasks), "font": font}
    if not (protocol or everything):
        records, hidden = current(records)
        if hidden:
            say(hidden)
    if name != ALL:
        yield from draw(name, records, folder, **options)  # type: ignore[arg-type]
        return
    failed = []
    for each, outcome in draw_all(records, folder, **options):
        if isinstance(outcome, Exception):
            say(f"plot {each}: {outcome}")
            failed.append(each)
        else:
            yield from outcome
    if failed:
        names = ", ".join(failed)
        raise UserError(f"plot: {names} could not be drawn, see the messages above; all other figures were written")


def draw_all(
    records: Sequence[Record], folder: Path, names: Iterable[str] | None = None, **options: Any
) -> Generator[tuple[str, Sequence[Path] | Exception]]:
    """Draw figures, by default all, with the ``options`` of ``draw``; yield the name of each with its paths.

    The exception that was raised is yielded instead of paths. Figures without data are reported on stderr. Ctrl-C ends
    drawing even if a library catches ``KeyboardInterrupt``. Raises ``UserError`` if the folder cannot be written.
    """
    check_output(folder)
    names = list(names or figure_names())
    with deferred(act=interrupt) as interrupted, bar(len(names), "drawing", unit="figures") as advance:
        for name in names:
            outcome: Sequence[Path] | Exception = ()
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
