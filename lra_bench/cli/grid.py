"""The commands of ``lra-bench grid``."""

from __future__ import annotations

from collections import Counter
from dataclasses import asdict
from typing import Annotated

import typer

from lra_bench.progress import say

from .options import ConfigDir, Json, Results, print_json, print_table, root_of

app = typer.Typer(help="Show and stop grids that run in the background or were submitted to a queue.")

Name = Annotated[str | None, typer.Argument(help="Name of the grid; default: the latest")]


@app.command()
def status(name: Name = None, results: Results = None, config_dir: ConfigDir = None, as_json: Json = False) -> None:
    """Show the state of each cell of a grid."""
    from lra_bench.grid.background import read
    from lra_bench.grid.queue import states_of

    root = root_of(results)
    grid = read(root, name)
    found = states_of(grid, root, config_dir)
    if as_json:
        print_json({"grid": grid.name, "started_at": grid.started_at, "cells": [asdict(state) for state in found]})
        return
    print_table([{key: getattr(each, key) for key in ("cell", "job", "state", "reason")} for each in found])
    counts = ", ".join(f"{count} {state}" for state, count in Counter(each.state for each in found).most_common())
    logs = grid.folder(root) / "logs"
    say(f"{grid.name}, started {grid.started_at}: {counts}.{f' Logs: {logs}' if logs.is_dir() else ''}")


@app.command()
def stop(name: Name = None, results: Results = None, config_dir: ConfigDir = None) -> None:
    """Stop a grid: running cells write a checkpoint, waiting ones are not started.

    The command that started the grid continues it.
    """
    from lra_bench.grid import queue
    from lra_bench.grid.background import read

    root = root_of(results)
    print(queue.stop(read(root, name), root, config_dir))
