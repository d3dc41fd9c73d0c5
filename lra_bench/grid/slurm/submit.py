"""The cells of a grid as jobs of Slurm, through submitit; its local executor runs the same jobs without Slurm."""

from __future__ import annotations

import json
import os
import subprocess
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager, nullcontext
from dataclasses import asdict
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from lra_bench.config.schema import CellConfig
from lra_bench.config.serialization import as_dict
from lra_bench.contracts import UserError
from lra_bench.grid.resources import cards_of, cores_of
from lra_bench.grid.status import Planned, place_of
from lra_bench.runtime.subprocesses import environment

from .job import CellJob
from .manifest import CLUSTERS, REQUEUE, SubmittedCell, SubmittedGrid, new_name

MOST_REQUEUES = 100
"""How often a cell whose time was over is put back in line; each time it has come further."""


def submit(planned: Sequence[Planned], results: Path, config_dir: Path | None, rerun: str) -> SubmittedGrid:
    """Submit cells as job arrays, one for each kind of machine they want, and return at once."""
    launchers = {each.cell.config.launcher.cluster for each in planned}
    if len(launchers) > 1:
        raise UserError("launcher.cluster: is one for all cells of a grid")
    cluster = planned[0].cell.config.launcher.cluster
    if cluster not in CLUSTERS:
        raise UserError(f"launcher.cluster={cluster}: choose {' or '.join(CLUSTERS)}")
    cells = [
        SubmittedCell(
            key=asdict(each.cell.key),
            overrides=list(each.cell.overrides),
            place=place_of(as_dict(each.cell.config)),
            resources=resources(each.cell.config),
        )
        for each in planned
    ]
    check_here(cluster)
    grid = SubmittedGrid(
        name=new_name(results),
        submitted_at=datetime.now(UTC).isoformat(timespec="seconds"),
        cluster=cluster,
        config_dir=str(config_dir.resolve()) if config_dir else None,
        rerun=rerun,
        cells=cells,
    )
    for _ in submit_cells(grid, range(len(cells)), results):
        grid.write(results)
    return grid


def submit_cells(grid: SubmittedGrid, numbers: Sequence[int], results: Path) -> Iterator[None]:
    """Submit some cells of a grid and note their jobs; yields after each array, so that it can be written down."""
    import submitit

    folder = grid.folder(results)
    arrays: dict[str, list[int]] = {}
    for number in numbers:
        arrays.setdefault(json.dumps(grid.cells[number].resources, sort_keys=True), []).append(number)
    for together in arrays.values():
        executor = submitit.AutoExecutor(folder / "logs", cluster=grid.cluster, slurm_max_num_timeout=MOST_REQUEUES)
        executor.update_parameters(name="lra-bench", **grid.cells[together[0]].resources)
        jobs = [
            CellJob(grid.cells[number].overrides, results, grid.config_dir, folder, number, grid.rerun)
            for number in together
        ]
        with _exported(grid.config_dir), _unheard() if grid.cluster == "local" else nullcontext():
            try:
                submitted = executor.submit_array(jobs)
            except (OSError, submitit.core.utils.FailedJobError, submitit.core.utils.FailedSubmissionError) as error:
                raise UserError(f"launcher=slurm: sbatch refused the jobs ({_last_line(error)})") from error
        for number, job in zip(together, submitted, strict=True):
            grid.cells[number].job = str(job.job_id)
        yield


def resources(config: CellConfig) -> dict[str, Any]:
    """What submitit is to ask Slurm for, for one cell; ``UserError`` where the options do not say it."""
    launcher = config.launcher
    wanted = {
        "timeout_min": launcher.minutes,
        "cpus_per_task": cores_of(config),
        "gpus_per_node": cards_of(config) or None,
        "mem_gb": launcher.memory_gigabytes,
        "slurm_partition": launcher.partition,
        "slurm_account": launcher.account,
        "slurm_array_parallelism": launcher.at_once,
        "slurm_signal_delay_s": launcher.signal_seconds,
        "slurm_additional_parameters": REQUEUE,
    }
    return {name: value for name, value in wanted.items() if value is not None}


def check_here(cluster: str) -> None:
    """Raise ``UserError`` where nothing can be submitted from this machine."""
    import importlib.util
    import shutil

    if importlib.util.find_spec("submitit") is None:
        raise UserError("launcher=slurm: needs submitit; pip install 'lra-bench[slurm]'")
    if cluster == "slurm" and shutil.which("sbatch") is None:
        raise UserError(
            "launcher=slurm: there is no sbatch here; submit from a login node or set launcher.cluster=local"
        )


@contextmanager
def _exported(config_dir: str | None) -> Iterator[None]:
    """The environment that jobs are to have, which Slurm takes over from the process that submits them."""
    before = dict(os.environ)
    os.environ.update(environment(config_dir))
    try:
        yield
    finally:
        os.environ.clear()
        os.environ.update(before)


@contextmanager
def _unheard() -> Iterator[None]:
    """Keep processes that are started from our output, or who reads it would wait until they end."""
    with ExitStack() as undone:
        nothing = os.open(os.devnull, os.O_WRONLY)
        undone.callback(os.close, nothing)
        for number in (1, 2):
            kept = os.dup(number)
            undone.callback(os.close, kept)
            undone.callback(os.dup2, kept, number)
            os.dup2(nothing, number)
        yield


def cancel_jobs(cluster: str, jobs: Sequence[str]) -> None:
    """End jobs; cells that run leave a checkpoint."""
    if cluster == "slurm":
        done = subprocess.run(["scancel", *jobs], capture_output=True, text=True, check=False)
        if done.returncode:
            raise UserError(f"grid cancel: scancel refused ({done.stderr.strip()})")
        return
    from .queue import local_job

    for job in jobs:
        if (process := local_job(job)) is not None:
            process.terminate()


def _last_line(error: Exception) -> str:
    return (str(error).strip() or type(error).__name__).splitlines()[-1]
