"""The commands of ``lra-bench grid``."""

from __future__ import annotations

from collections import Counter
from dataclasses import asdict
from typing import Annotated

import typer

from lra_bench.progress import say

from .options import Json, Results, print_json, print_table, root_of

app = typer.Typer(help="Follow, end and continue submitted grids (bench … launcher=slurm).")

Name = Annotated[str | None, typer.Argument(help="The grid's name; default: the latest")]


@app.command()
def status(name: Name = None, results: Results = None, as_json: Json = False) -> None:
    """Say how each cell of a submitted grid fares."""
    from lra_bench.grid.slurm.manifest import read
    from lra_bench.grid.slurm.status import submitted_statuses

    root = root_of(results)
    grid = read(root, name)
    found = submitted_statuses(grid, root)
    if as_json:
        print_json(
            {
                "grid": grid.name,
                "submitted_at": grid.submitted_at,
                "cells": [asdict(cell_status) for cell_status in found],
            }
        )
        return
    print_table([{name: getattr(each, name) for name in ("cell", "job", "host", "state", "reason")} for each in found])
    counts = ", ".join(f"{count} {state}" for state, count in Counter(each.state for each in found).most_common())
    say(f"{grid.name}, submitted {grid.submitted_at}: {counts}. Logs: {grid.folder(root) / 'logs'}")


@app.command()
def cancel(name: Name = None, results: Results = None) -> None:
    """End the jobs of a submitted grid that wait or run; running cells leave a checkpoint."""
    from lra_bench.grid.slurm.status import cancel

    grid, count = cancel(root_of(results), name)
    print(f"{grid}: {count} jobs ended; lra-bench grid resume {grid} continues them")


@app.command()
def resume(name: Name = None, results: Results = None) -> None:
    """Submit again the cells of a grid that have neither a result nor a job."""
    from lra_bench.grid.slurm.status import resume

    grid, count = resume(root_of(results), name)
    print(f"{grid}: {count} cells submitted again")
