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
        bool, typer.Option("--dry-run", help="Print the cells with status, estimated duration and reason; run none")
    ] = False,
    print_config: Annotated[
        bool, typer.Option("--print-config", help="Print each composed configuration; run none")
    ] = False,
    rerun: Annotated[
        str,
        typer.Option(
            metavar="never|failed|stale|all",
            help="Cells with a record to measure again: failed ones, those of an older version, or all from step 0",
        ),
    ] = "never",
) -> None:
    """Train and measure cells; write one record per cell.

    A record contains the test score, speed, memory, FLOPs and the scores on shorter and longer inputs.
    """
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
    _print_reference_scores([record for _, record in measured], boards)
    _print_next_steps(measured)
    if worst:
        raise typer.Exit(worst)


def _print_plan(planned: Any, root: Path, rerun: str) -> None:
    from lra_bench.grid.cost import estimates, summary
    from lra_bench.grid.execute import must_run

    to_run = [each for each in planned if must_run(each, rerun)]
    costs = dict(zip((each.cell.key for each in to_run), found := estimates(to_run, root), strict=True))
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
    if to_run:
        say(summary(to_run, found))


def _submit(planned: Any, root: Path, config_dir: Path | None, rerun: str) -> None:
    from lra_bench.grid.execute import partition
    from lra_bench.grid.slurm.submit import submit

    to_run = []
    for each, record in partition(planned, root, rerun):
        if record is None:
            to_run.append(each)
        else:
            _print_outcome(each, record)
    if to_run:
        grid = submit(to_run, root, config_dir, rerun)
        say(f"{len(to_run)} cells submitted; lra-bench grid status {grid.name} shows their status.")


def _print_outcome(each: Any, record: Any) -> None:
    from lra_bench.leaderboard.export import row_for

    if each.status in ("done", "failed", "stale") and record is each.record:
        say(f"{each.cell.key}: {each.status}, {each.reason}.")
    print(row_for(record), end="")
    print(f"Record: {_relative(record.path)}\n")


def _print_reference_scores(records: Sequence[Record], boards: Path | None) -> None:
    """Print the measured scores together with those of the reference boards, in one table per task."""
    from lra_bench.leaderboard.export import score_table
    from lra_bench.records.reference import load_reference

    scored = [record for record in records if record.status == "ok" and not record.protocol_modified]
    measured = {_ranking(record) for record in scored}
    if not measured:
        return
    references = [record for record in load_reference(boards) if _ranking(record) in measured]
    shared = {_ranking(record) for record in references}
    if own := [record for record in scored if _ranking(record) in shared]:
        print(f"Compared with the reference boards ({_relative(boards)}):\n\n{score_table([*own, *references])}")


def _ranking(record: Record) -> tuple[str, str]:
    return record.key.task, record.key.protocol


def _print_next_steps(measured: Sequence[tuple[Cell, Record]]) -> None:
    """Print suggested next commands: show the record, the leaderboard, more seeds, the next protocol."""
    from lra_bench.leaderboard.naming import UNRANKED
    from lra_bench.statistics.paired import MIN_SEEDS

    done = [(cell, record) for cell, record in measured if record.status == "ok"]
    if not done:
        return
    (last, _), program = done[-1], _program()
    protocol = last.config.protocol
    lines = [("show the full record", f"{program} show last")]
    named = [f"--protocol {last.key.protocol}"] if last.key.protocol in UNRANKED else []
    lines.append(
        ("compare with all other records", " ".join([f"{program} leaderboard --task {last.key.task}", *named]))
    )
    if len({cell.key.seed for cell, _ in done}) < MIN_SEEDS:
        lines.append(("run three seeds, to test differences", f"{program} {_with_seeds(last.command)}"))
    width = max(len(meaning) for meaning, _ in lines)
    print("Next steps:")
    for meaning, command in lines:
        print(f"  {meaning:<{width}}  {command}")
    if protocol.next:
        print(f"Results of protocol={protocol.name} are preliminary; use protocol={protocol.next} next.")


def _with_seeds(command: str) -> str:
    """Return the command of a cell for three seeds, without the name of the program."""
    words = [word for word in shlex.split(command)[1:] if not word.startswith("seed=")]
    return shlex.join([*words, "seed=0,1,2"])


def _program() -> str:
    """Return how to call this program: by its name if it is on the PATH, otherwise by its path."""
    called = Path(sys.argv[0])
    found = shutil.which(called.name)
    if called.name != "lra-bench" or (found and Path(found).resolve() == called.resolve()):
        return "lra-bench"
    return _relative(called.absolute())


def _relative(path: Path | None) -> str:
    """Return a path relative to the working folder if it is inside it, otherwise unchanged."""
    assert path is not None
    return str(path.relative_to(Path.cwd()) if path.is_relative_to(Path.cwd()) else path)
