"""Query which jobs are pending or running."""

from __future__ import annotations

import subprocess
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import psutil


def states(cluster: str, jobs: list[str]) -> dict[str, str] | None:
    """Return the state of each job that has not ended, such as ``pending`` or ``running``.

    Returns None if the queue cannot be queried.
    """
    if cluster == "local":
        return {job: "running" for job in jobs if local_job(job) is not None}
    try:
        # Print one line per task of an array. Request all jobs: naming a job that has ended would be an error.
        command = ["squeue", "--noheader", "--array", "--states=all", "--format=%F_%K %i %T"]
        done = subprocess.run(command, capture_output=True, text=True, timeout=60, check=True)
    except (OSError, subprocess.SubprocessError):
        return None
    ended = ("BOOT_FAIL", "CANCELLED", "COMPLETED", "DEADLINE", "FAILED", "NODE_FAIL", "OUT_OF_MEMORY", "TIMEOUT")
    found = {}
    for line in done.stdout.splitlines():
        task, alone, state = line.split()
        if state not in ended:
            found[task] = found[alone] = state.lower()
    return {job: found[job] for job in jobs if job in found}


def local_job(job: str) -> psutil.Process | None:
    """Return the process that runs a job of submitit's local executor, or None if it has ended."""
    import psutil

    try:
        process = psutil.Process(int(job))
        is_executor = any("submitit" in word for word in process.cmdline())
        return process if is_executor and process.status() != psutil.STATUS_ZOMBIE else None
    except (psutil.Error, ValueError, OverflowError):
        return None
