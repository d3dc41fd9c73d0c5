"""The command ``lra-bench bench``."""

from __future__ import annotations

import shlex
import shutil
import sys
from collections.abc import Sequence
from contextlib import nullcontext
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from lra_bench.contracts import UserError
from lra_bench.progress import say

from .options import ConfigDir, Overrides, Reference, Results, Source, print_table, root_of, with_source

if TYPE_CHECKING:
    from lra_bench.cells.cell import Cell
    from lra_bench.records.schema import Record


def bench(
    overrides: Overrides = None,
    results: Results = None,
    reference: Reference = None,
    config_dir: ConfigDir = None,
    source: Source = None,
    dry_run: Annotated[
        bool, typer.Option("--dry-run", help="Print the cells with status, cost and reason, run none")
    ] = False,
    print_config: Annotated[bool, typer.Option("--print-config", help="Print each composed configuration")] = False,
    rerun: Annotated[
        str,
        typer.Option(
            metavar="never|failed|stale|all",
            help="Which cells with a record to measure again: that failed, of an older version, all from the start",
        ),
    ] = "never",
) -> None:
    """Measure cells: train, test, speed, memory, FLOPs, extrapolation; one record each."""
    from lra_bench.grid.execute import execute, submits
    from lra_bench.grid.plan import plan
    from lra_bench.grid.status import RERUN
    from lra_bench.records.reference import reference_root
    from lra_bench.runtime.files import cache_read_only

    if rerun not in RERUN:
        raise UserError(f"--rerun {rerun}: choose {', '.join(RERUN)}")
    root, boards = root_of(results), reference_root(reference)
    with cache_read_only() if dry_run or print_config else nullcontext():
        planned = plan(with_source(overrides, source), root, config_dir)
    if print_config:
        import yaml

        from lra_bench.config.serialization import as_dict

        for each in planned:
            print(f"# {each.cell.key}\n{yaml.safe_dump(as_dict(each.cell.config), sort_keys=False)}", end="")
        return
    if dry_run:
        _print_plan(planned, root, rerun)
        return
    if submits(planned):
        _submit(planned, root, config_dir, rerun)
        return
    worst = 0
    measured: list[tuple[Cell, Record]] = []
    for each, record, code in execute(planned, root, rerun):
        worst = max(worst, code)
        if record is not None:
            _print_outcome(each, record)
            measured.append((each.cell, record))
    _print_beside_reference([record for _, record in measured], boards)
    _print_next(measured)
    if worst:
        raise typer.Exit(worst)


def _print_plan(planned: Any, root: Path, rerun: str) -> None:
    from lra_bench.grid.cost import estimates, summary
    from lra_bench.grid.execute import wants_run

    wanted = [each for each in planned if wants_run(each, rerun)]
    costs = dict(zip((each.cell.key for each in wanted), found := estimates(wanted, root), strict=True))
    print_table(
        [
            {
                "cell": str(each.cell.key),
                "status": each.status,
                "cost": costs.get(each.cell.key),
                "reason": each.reason,
            }
            for each in planned
        ]
    )
    if wanted:
        say(summary(wanted, found))


def _submit(planned: Any, root: Path, config_dir: Path | None, rerun: str) -> None:
    from lra_bench.grid.execute import partition
    from lra_bench.grid.slurm.submit import submit

    left = []
    for each, record in partition(planned, root, rerun):
        if record is None:
            left.append(each)
        else:
            _print_outcome(each, record)
    if left:
        grid = submit(left, root, config_dir, rerun)
        say(f"{len(left)} cells submitted; lra-bench grid status {grid.name} says how far they are.")


def _print_outcome(each: Any, record: Any) -> None:
    from lra_bench.leaderboard.export import row_for

    if each.status in ("done", "failed", "stale") and record is each.record:
        say(f"{each.cell.key}: {each.status}, {each.reason}.")
    print(row_for(record), end="")
    print(f"Record: {_shortest(record.path)}\n")


def _print_beside_reference(records: Sequence[Record], boards: Path | None) -> None:
    """Print the scores just measured beside those of the reference boards, a table for each task."""
    from lra_bench.leaderboard.export import score_table
    from lra_bench.records.reference import load_reference

    scored = [record for record in records if record.status == "ok" and not record.protocol_modified]
    measured = {_ranking(record) for record in scored}
    if not measured:
        return
    beside = [record for record in load_reference(boards) if _ranking(record) in measured]
    shared = {_ranking(record) for record in beside}
    if own := [record for record in scored if _ranking(record) in shared]:
        print(f"Beside the reference boards ({_shortest(boards)}):\n\n{score_table([*own, *beside])}")


def _ranking(record: Record) -> tuple[str, str]:
    return record.key.task, record.key.protocol


def _print_next(measured: Sequence[tuple[Cell, Record]]) -> None:
    """Print what may be run next: the record, the tables, more seeds, the next protocol."""
    from lra_bench.leaderboard.naming import UNRANKED
    from lra_bench.statistics.paired import MIN_SEEDS

    done = [(cell, record) for cell, record in measured if record.status == "ok"]
    if not done:
        return
    (last, _), program = done[-1], _program()
    protocol = last.config.protocol
    lines = [("the whole record", f"{program} show last")]
    named = [f"--protocol {last.key.protocol}"] if last.key.protocol in UNRANKED else []
    lines.append(("its row beside all others", " ".join([f"{program} leaderboard --task {last.key.task}", *named])))
    if len({cell.key.seed for cell, _ in done}) < MIN_SEEDS:
        lines.append(("three seeds, so that differences can be tested", f"{program} {_with_seeds(last.command)}"))
    width = max(len(meaning) for meaning, _ in lines)
    print("Next:")
    for meaning, command in lines:
        print(f"  {meaning:<{width}}  {command}")
    if protocol.next:
        print(f"Protocol {protocol.name} gives a first look; protocol={protocol.next} is the next step.")


def _with_seeds(command: str) -> str:
    """The command of a cell for three seeds, without the name of the program."""
    words = [word for word in shlex.split(command)[1:] if not word.startswith("seed=")]
    return shlex.join([*words, "seed=0,1,2"])


def _program() -> str:
    """How to call this program: by its name if the shell finds it, else by its path."""
    called = Path(sys.argv[0])
    found = shutil.which(called.name)
    if called.name != "lra-bench" or (found and Path(found).resolve() == called.resolve()):
        return "lra-bench"
    return _shortest(called.absolute())


def _shortest(path: Path | None) -> str:
    """A path relative to the working folder, if it lies in it."""
    assert path is not None
    return str(path.relative_to(Path.cwd()) if path.is_relative_to(Path.cwd()) else path)
