"""The command ``lra-bench bench``."""

from __future__ import annotations

import os
import shlex
import signal
from collections.abc import Sequence
from contextlib import nullcontext
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from lra_bench.errors import from_here
from lra_bench.progress import say
from lra_bench.runtime.subprocesses import PARENT, prepare_child

from .options import (
    ConfigDir,
    DryRun,
    Overrides,
    Reference,
    Results,
    Source,
    follow_up,
    print_table,
    program,
    root_of,
    with_source,
)

if TYPE_CHECKING:
    from lra_bench.cells.cell import Cell
    from lra_bench.records.schema import Record


def bench(
    overrides: Overrides = None,
    results: Results = None,
    reference: Reference = None,
    config_dir: ConfigDir = None,
    source: Source = None,
    dry_run: DryRun = False,
    print_config: Annotated[
        bool,
        typer.Option(
            "--print-config", help="Print each composed configuration with the origin of its values; run none"
        ),
    ] = False,
    rerun: Annotated[
        str,
        typer.Option(
            metavar="never|failed|stale|all",
            help="Which cells with a record are measured again: never, only interrupted ones continue; failed, those "
            "that failed, timed out or ran out of memory, from the last checkpoint; stale, those measured with another "
            "version of lra-bench or of the task, from the start; all, every cell, from the start",
        ),
    ] = "never",
    here: Annotated[
        bool, typer.Option("--here", help="Run the cells on this machine, whichever launcher they name")
    ] = False,
) -> None:
    """Train and measure cells; write one record per cell.

    A record contains the test score, speed, memory, FLOPs and the scores on shorter and longer inputs.
    """
    from lra_bench.grid.execute import execute, not_run
    from lra_bench.grid.notes import absences, destinations, not_used
    from lra_bench.grid.plan import plan
    from lra_bench.grid.status import check_rerun
    from lra_bench.records.reference import reference_root
    from lra_bench.runtime.files import cache_read_only

    if here and PARENT in os.environ:  # started by a launcher
        prepare_child(signal.SIGTERM, 0)
    check_rerun(rerun)
    root, boards = root_of(results), reference_root(reference)
    with cache_read_only() if dry_run or print_config else nullcontext():
        overrides = with_source(overrides, source)
        planned = plan(overrides, root, config_dir, here)
    if print_config:
        from lra_bench.config.origins import annotated, origins
        from lra_bench.config.serialization import as_dict

        for each in planned:
            print(f"# {each.cell.key}")
            print(*annotated(as_dict(each.cell.config), origins(each.cell.overrides, config_dir)), sep="\n")
        return
    if dry_run:
        _print_plan(planned, root, boards, rerun, config_dir)
        return
    absent = not_run(planned)
    for line in (*absences(absent), *destinations(planned, root, rerun, program("wandb"))):
        say(line)
    _print_defaults(planned, root, boards, rerun)
    for line in not_used(planned, root, rerun):
        say(line)
    worst_code = 0
    measured: list[tuple[Cell, Record]] = []
    for each, record, code in execute(planned, root, rerun, here):
        worst_code = max(worst_code, code)
        if record is not None:
            _print_outcome(each, record)
            measured.append((each.cell, record))
    _print_reference_scores([record for _, record in measured], boards)
    if not here:
        _print_next_steps(measured, overrides, config_dir, results)
    if absent:
        say(f"{len(absent)} of {len(planned)} cells were not run, see the messages at the start.")
    if worst_code:
        raise typer.Exit(worst_code)


def _print_defaults(planned: Any, root: Path, boards: Path | None, rerun: str) -> None:
    """Print which defaults of model= and task= are used, and the estimated duration of the cells that must run."""
    from lra_bench.grid.cost import estimates, summary
    from lra_bench.grid.status import must_run

    given = {text.partition("=")[0].lstrip("+") for each in planned for text in each.cell.overrides}
    unset = [name for name in ("model", "task") if name not in given]
    to_run = [each for each in planned if must_run(each, rerun)]
    if unset and to_run:
        defaults = " ".join(f"{name}={getattr(to_run[0].cell.key, name)}" for name in unset)
        say(f"Default{'s' if len(unset) > 1 else ''}: {defaults}. {summary(to_run, estimates(to_run, root, boards))}")


def _print_plan(planned: Any, root: Path, boards: Path | None, rerun: str, config_dir: Path | None) -> None:
    """Print a table of the cells, after the trials that they need, and the estimated cost of those that must run."""
    from lra_bench.config.import_path import importable
    from lra_bench.grid.changes import changed_since
    from lra_bench.grid.search import all_trials, trials_to_add

    most_added = trials_to_add(planned, root, rerun)
    planned = [*all_trials(planned, root, rerun), *planned]
    with importable(config_dir):
        reasons = [each.reason or changed_since(each.cell, root, config_dir) for each in planned]
    print_cells(planned, reasons, root, boards, rerun)
    if most_added:
        say(f"Searches add trials, depending on the results of these: at most {most_added} more trials.")


def print_cells(
    planned: Any, reasons: Sequence[str], root: Path, boards: Path | None, rerun: str, others: bool = False
) -> None:
    """Print a table of planned cells with the estimated cost of those that will run (``grid.cost.estimates``)."""
    from lra_bench.grid.cost import estimates, summary
    from lra_bench.grid.status import must_run

    to_run = [each for each in planned if must_run(each, rerun)]
    found = estimates(to_run, root, boards, others=others)
    costs = dict(zip((each.cell.key for each in to_run), found, strict=True))
    print_table(
        [
            {"cell": str(each.cell.key), "status": each.status, "cost": costs.get(each.cell.key), "reason": reason}
            for each, reason in zip(planned, reasons, strict=True)
        ]
    )
    if to_run:
        say(summary(to_run, found))


def _print_outcome(each: Any, record: Any) -> None:
    """Print the leaderboard row and the path of a record."""
    from lra_bench.records.packed import RECORDS, folder_of
    from lra_bench.tables.export import row_for

    # The existing record is returned if the cell was not run; then report why.
    if each.status in ("done", "failed", "stale") and record is each.record:
        say(f"{each.cell.key}: {each.status}, {each.reason}.")
    print(row_for(record), end="")
    folder = folder_of(record.path)  # None unless the record is packed
    where = from_here(record.path) if folder is None else f"{record.key} in {from_here(folder / RECORDS)}"
    print(f"Record: {where}\n")


def _print_reference_scores(records: Sequence[Record], boards: Path | None) -> None:
    """Print the measured scores together with those of the reference boards for the same task and protocol."""
    from lra_bench.records.reference import load_reference
    from lra_bench.tables.export import score_table

    scored = [record for record in records if record.status == "ok" and not record.protocol_modified]
    measured = {_task_and_protocol(record) for record in scored}
    if not measured or boards is None:
        return
    references = [record for record in load_reference(boards) if _task_and_protocol(record) in measured]
    shared = {_task_and_protocol(record) for record in references}
    if own := [record for record in scored if _task_and_protocol(record) in shared]:
        print(f"Compared with the reference boards ({from_here(boards)}):\n\n{score_table([*own, *references])}")


def _task_and_protocol(record: Record) -> tuple[str, str]:
    """Return task and protocol, which scores must share to be compared."""
    return record.key.task, record.key.protocol


def _print_next_steps(
    measured: Sequence[tuple[Cell, Record]], overrides: Sequence[str], config_dir: Path | None, results: Path | None
) -> None:
    """Print suggested next commands for the cells with status ``ok``; nothing if there is none.

    They show the last record, compare it with all records, and measure more seeds if there are too few for a test.
    """
    from lra_bench.statistics.paired import MIN_SEEDS
    from lra_bench.tables.naming import UNRANKED

    done = [(cell, record) for cell, record in measured if record.status == "ok"]
    if not done:
        return
    last, _ = done[-1]
    protocol = last.config.protocol
    lines = [("show the full record", "show last")]
    option = f" --protocol {last.key.protocol}" if last.key.protocol_name in UNRANKED else ""
    lines.append(("compare with all other records", f"leaderboard --tasks {last.key.task}{option}"))
    if len({cell.key.seed for cell, _ in done}) < MIN_SEEDS:
        folder = ["--config-dir", str(config_dir)] if config_dir else []
        kept = [text for text in overrides if not text.startswith("seed=")]
        seeds = f"seed={','.join(map(str, range(MIN_SEEDS)))}"
        lines.append((f"run {MIN_SEEDS} seeds, to test differences", shlex.join(["bench", *folder, *kept, seeds])))
    width = max(len(meaning) for meaning, _ in lines)
    print("Next steps:")
    for meaning, command in lines:
        print(f"  {meaning:<{width}}  {follow_up(command, results)}")
    if protocol.next:
        print(f"Results of protocol={protocol.name} are preliminary; use protocol={protocol.next} next.")
