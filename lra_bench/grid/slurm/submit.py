"""Submit the cells of a grid as Slurm jobs through submitit, whose local executor runs the same jobs without Slurm."""

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
from lra_bench.contracts import UserError, install_command
from lra_bench.grid.resources import cores_of, gpus_of
from lra_bench.grid.status import Planned, place_of
from lra_bench.runtime.subprocesses import environment

from .job import CellJob
from .manifest import REQUEUE, SubmittedCell, SubmittedGrid, new_name

MOST_REQUEUES = 100
"""Maximum number of times that a job which reaches its time limit is requeued; it resumes from its checkpoint."""


def submit(planned: Sequence[Planned], results: Path, config_dir: Path | None, rerun: str) -> SubmittedGrid:
    """Submit cells as job arrays, one per set of requested resources, and return without waiting for them.

    The grid is written after each array. If a later array is rejected, the jobs of the earlier ones stay queued, and
    ``lra-bench grid`` can report, cancel or complete them.

    Args:
        planned: The cells, at least one.
        results: The results folder, in which the folder of the grid is created.
        config_dir: Folder of additional configuration and classes, None for none.
        rerun: Value of ``--rerun``, which the jobs apply when they start.

    Returns:
        The submitted grid, with the ids of the jobs.

    Raises:
        UserError: If the cells name different clusters, the resources of a cell are not determined, the jobs cannot be
            submitted from this machine or are rejected, or the results folder cannot be written.
    """
    launchers = {each.cell.config.launcher.cluster for each in planned}
    if len(launchers) > 1:
        raise UserError("launcher.cluster: the cells of a grid name different clusters; choose one for all")
    cluster = planned[0].cell.config.launcher.cluster  # name of submitit's executor
    cells = [
        SubmittedCell(
            key=asdict(each.cell.key),
            overrides=list(each.cell.overrides),
            place=place_of(as_dict(each.cell.config)),  # options by which the record of the cell is found later
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
    """Submit the cells with the given indices and store the ids of their jobs in ``grid``.

    Yields after each job array, so that the caller can write the grid. Raises ``UserError`` if an array cannot be
    submitted; arrays submitted before it stay queued.
    """
    import submitit

    folder = grid.folder(results)
    arrays: dict[str, list[int]] = {}
    for number in numbers:
        arrays.setdefault(json.dumps(grid.cells[number].resources, sort_keys=True), []).append(number)
    for array in arrays.values():
        executor = submitit.AutoExecutor(folder / "logs", cluster=grid.cluster, slurm_max_num_timeout=MOST_REQUEUES)
        executor.update_parameters(name="lra-bench", **grid.cells[array[0]].resources)
        jobs = [
            CellJob(grid.cells[number].overrides, results, grid.config_dir, folder, number, grid.rerun)
            for number in array
        ]
        with _job_environment(grid.config_dir), _output_discarded() if grid.cluster == "local" else nullcontext():
            try:
                submitted = executor.submit_array(jobs)
            except (OSError, submitit.core.utils.FailedJobError, submitit.core.utils.FailedSubmissionError) as error:
                raise UserError(f"launcher=slurm: the jobs cannot be submitted ({_last_line(error)})") from error
        for number, job in zip(array, submitted, strict=True):
            grid.cells[number].job = str(job.job_id)
        yield


def resources(config: CellConfig) -> dict[str, Any]:
    """Return the resources to request from Slurm for one cell, as parameters of submitit.

    Options that are not set are left out, so that the defaults of the cluster apply. Raises ``UserError`` if the
    options do not determine the number of GPUs, as with ``hardware=auto``.
    """
    launcher = config.launcher
    parameters = {
        "timeout_min": launcher.minutes,
        "cpus_per_task": cores_of(config),
        "gpus_per_node": gpus_of(config) or None,
        "mem_gb": launcher.memory_gigabytes,
        "slurm_partition": launcher.partition,
        "slurm_account": launcher.account,
        "slurm_array_parallelism": launcher.at_once,  # limit of each array, not of the grid
        "slurm_signal_delay_s": launcher.signal_seconds,
        "slurm_additional_parameters": REQUEUE,
    }
    return {name: value for name, value in parameters.items() if value is not None}


def check_here(cluster: str) -> None:
    """Raise ``UserError`` if jobs cannot be submitted from this machine."""
    import importlib.util
    import shutil

    if importlib.util.find_spec("submitit") is None:
        raise UserError(f"launcher=slurm: needs submitit; install it with {install_command('slurm')}")
    if cluster == "slurm" and shutil.which("sbatch") is None:
        raise UserError(
            "launcher=slurm: sbatch is not available here; submit from a login node or set launcher.cluster=local"
        )


@contextmanager
def _job_environment(config_dir: str | None) -> Iterator[None]:
    """Set the environment variables of the jobs in this process, from which the jobs inherit them."""
    before = dict(os.environ)
    os.environ.update(environment(config_dir))
    try:
        yield
    finally:
        os.environ.clear()
        os.environ.update(before)


@contextmanager
def _output_discarded() -> Iterator[None]:
    """Redirect stdout and stderr of this process to the null device.

    Otherwise the jobs of the local executor would inherit them, and a process that reads the output of this command
    would wait until the jobs end.
    """
    with ExitStack() as stack:
        null = os.open(os.devnull, os.O_WRONLY)
        stack.callback(os.close, null)
        for number in (1, 2):
            saved = os.dup(number)
            stack.callback(os.close, saved)
            stack.callback(os.dup2, saved, number)
            os.dup2(null, number)
        yield


def cancel_jobs(cluster: str, jobs: Sequence[str]) -> None:
    """Cancel jobs with SIGTERM; a running job forwards it to its cell, which writes a checkpoint before it ends.

    Raises ``UserError`` if scancel fails.
    """
    if cluster == "slurm":
        done = subprocess.run(["scancel", *jobs], capture_output=True, text=True, check=False)
        if done.returncode:
            raise UserError(f"grid cancel: scancel failed ({done.stderr.strip()})")
        return
    from .queue import local_job

    for job in jobs:
        if (process := local_job(job)) is not None:
            process.terminate()


def _last_line(error: Exception) -> str:
    """Return the last line of the message, which for errors of sbatch contains the reason."""
    return (str(error).strip() or type(error).__name__).splitlines()[-1]
