"""The command ``lra-bench bench``."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any

import typer

from lra_bench.cli_options import ConfigDir, Overrides, Results, Source, print_table, root_of, with_source
from lra_bench.contracts import UserError
from lra_bench.progress import say


def bench(
    overrides: Overrides = None,
    results: Results = None,
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

    if rerun not in RERUN:
        raise UserError(f"--rerun {rerun}: choose {', '.join(RERUN)}")
    root = root_of(results)
    planned = plan(with_source(overrides, source), root, config_dir)
    if print_config:
        import yaml

        for each in planned:
            print(f"# {each.cell.key}\n{yaml.safe_dump(each.cell.config, sort_keys=False)}", end="")
        return
    if dry_run:
        _print_plan(planned, root, rerun)
        return
    if submits(planned):
        _submit(planned, root, config_dir, rerun)
        return
    worst = 0
    for each, record, code in execute(planned, root, rerun):
        worst = max(worst, code)
        if record is not None:
            _print_outcome(each, record, root)
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
    from lra_bench.grid.execute import settle
    from lra_bench.grid.slurm import submit

    left = []
    for each, record in settle(planned, root, rerun):
        if record is None:
            left.append(each)
        else:
            _print_outcome(each, record, root)
    if left:
        grid = submit(left, root, config_dir, rerun)
        say(f"{len(left)} cells submitted; lra-bench grid status {grid.name} says how far they are.")


def _print_outcome(each: Any, record: Any, root: Path) -> None:
    from lra_bench.leaderboard.export import row_for

    if each.status in ("done", "failed", "stale") and record is each.record:
        say(f"{each.cell.key}: {each.status}, {each.reason}.")
    print(row_for(record))
    protocol = record.config["protocol"]
    if record.status == "ok" and protocol["next"] and record is not each.record:
        say(f"Protocol {protocol['name']} gives a first look; protocol={protocol['next']} is the next step.")
