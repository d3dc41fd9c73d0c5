"""Files of grids for tests."""

from pathlib import Path

from lra_bench.grid.background import Grid, GridCell
from lra_bench.grid.status import UNRESOLVED
from lra_bench.records.key import CellKey

KEY = CellKey(task="copy", model="local", hardware=UNRESOLVED, protocol="smoke", hash="0" * 8, seed=0)


def grid_of(name: str, results: Path, job: str = "") -> Grid:
    """Write and return a grid with one cell, submitted to Slurm if it has a job."""
    cell = GridCell(KEY, {"launcher.partition": None}, "lra-bench bench task=copy", job)
    launcher = {"_target_": f"lra_bench.grid.{'slurm.Slurm' if job else 'local.Local'}"}
    grid = Grid(name, "2000-01-01T00:00:00+00:00", launcher, cells=[cell])
    grid.write(results)
    return grid
