"""The commands of ``lra-bench grid``."""

from __future__ import annotations

from collections import Counter
from dataclasses import asdict
from typing import Annotated

import typer

from lra_bench.progress import say

from .options import Json, Results, follow_up, print_json, print_table, root_of

app = typer.Typer(help="Show, cancel and resume grids submitted with launcher=slurm.")

Name = Annotated[str | None, typer.Argument(help="Name of the grid; default: the latest")]


@app.command()
def status(name: Name = None, results: Results = None, as_json: Json = False) -> None:
    """Show the status of each cell of a submitted grid."""
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
    """Cancel the jobs of a submitted grid.

    Pending jobs are removed from the queue; running cells write a checkpoint first.
    """
    from lra_bench.grid.slurm.status import cancel

    grid, count = cancel(root_of(results), name)
    print(f"{grid}: {count} jobs cancelled; {follow_up(f'grid resume {grid}', results)} continues them")


@app.command()
def resume(name: Name = None, results: Results = None) -> None:
    """Submit the unfinished cells of a grid again.

    Cells that have a result or a pending or running job are left out.
    """
    from lra_bench.grid.slurm.status import resume

    grid, count = resume(root_of(results), name)
    print(f"{grid}: {count} cells submitted again")
