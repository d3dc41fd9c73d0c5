"""Run cells on a Ray cluster."""

from __future__ import annotations

import importlib.util
import logging
import os
import signal
import socket
import subprocess
import threading
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from lra_bench.cells.subprocess import INTERRUPTED
from lra_bench.config.schema import CellConfig
from lra_bench.contracts import CellJob, Launcher, Outcome, UserError, install_command
from lra_bench.progress import bar, say
from lra_bench.runtime.signals import deferred
from lra_bench.runtime.subprocesses import PARENT, environment

from .local import log_file
from .resources import cores_of, with_threads

POLL_SECONDS, CONNECT_SECONDS = 0.5, 10.0
MOST_RETRIES = 20
"""Maximum number of times that a cell is run again because its node failed."""

RECONNECT = "RAY_gcs_rpc_server_reconnect_timeout_s"
"""Environment variable: seconds after which a process of Ray exits if it cannot reach the control service (GCS)."""

PASSED_ON = ("LRA_BENCH_", "WANDB_", "HF_", "PYTHON")
"""Beginnings of the names of environment variables that cells receive from this process instead of from their node."""


@dataclass
class Ray(Launcher):
    """Runs each cell on a node of a Ray cluster that has its cores and GPUs free.

    If a node fails, its cells run again on other nodes and continue from their checkpoints. Locks and records in the
    shared results folder ensure that each cell is measured once.

    Attributes:
        address: Address of the cluster. By default ``$RAY_ADDRESS``, a cluster to which this machine belongs, or a new
            one that consists of this machine.
    """

    address: str | None = None

    def adapted(self, config: CellConfig) -> CellConfig:
        """Return the configuration with one thread for each core that a process has."""
        return with_threads(config, cores_of(config))

    def launch(self, jobs: Sequence[CellJob]) -> Iterator[Outcome]:
        """Run the cells and yield each as it ends.

        After the first signal, running cells write a checkpoint; after a second one Ray ends their processes.
        """
        if importlib.util.find_spec("ray") is None:
            raise UserError(f"launcher=ray: needs ray; install it with {install_command('ray')}")
        _check_answers(self.address or os.environ.get("RAY_ADDRESS", ""))
        with _connected(self.address):
            yield from _run(jobs)


@contextmanager
def _connected(address: str | None) -> Iterator[None]:
    """Connect to a Ray cluster, unless already connected, and disconnect on exit.

    ``ray.init`` installs a SIGTERM handler that exits with a stack trace; the previous handler is restored.
    """
    import ray

    if ray.is_initialized():
        yield
        return
    os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")
    options: dict[str, Any] = {"log_to_driver": False, "logging_level": logging.WARNING}
    handler = signal.getsignal(signal.SIGTERM)
    try:
        try:
            ray.init(address or "auto", **options)
        except ConnectionError:
            if address or os.environ.get("RAY_ADDRESS"):
                raise
            os.environ.setdefault(RECONNECT, "5")  # nothing restarts the control service of a new cluster
            ray.init("local", include_dashboard=False, **options)
    except (ConnectionError, ValueError, RuntimeError) as error:
        raise UserError(f"launcher.address={address}: no Ray cluster can be used ({error})") from error
    if threading.current_thread() is threading.main_thread():
        signal.signal(signal.SIGTERM, handler)
    try:
        yield
    finally:
        ray.shutdown()


def _run(jobs: Sequence[CellJob]) -> Iterator[Outcome]:
    """Run the cells on the connected cluster."""
    import ray
    from ray.exceptions import RayError, TaskCancelledError

    available = ray.cluster_resources()
    for name, needed in (("CPU", max(job.cores for job in jobs)), ("GPU", max(job.gpus for job in jobs))):
        if needed > (free := available.get(name, 0)):  # a cluster in a cloud may start nodes
            say(
                f"launcher=ray: a cell needs {needed} {name}s, the cluster has {free:g}; it waits until a node has them"
            )
    task = ray.remote(max_retries=MOST_RETRIES)(run_command)
    variables = {name: value for name, value in environment().items() if name.startswith(PASSED_ON)}
    logs = {job: log_file(job.planned.cell.key) for job in jobs}
    running = {
        task.options(name=job.key, num_cpus=job.cores, num_gpus=job.gpus).remote(
            job.command, variables, Path.cwd(), logs[job]
        ): job
        for job in jobs
    }

    signals: list[int] = []
    with deferred(signals.append, signals.append), bar(len(jobs), "Measuring", unit="cells") as advance:
        handled = 0
        while running:
            ended, _ = ray.wait(list(running), timeout=POLL_SECONDS)
            if len(signals) > handled:
                for each in running:
                    ray.cancel(each, force=handled > 0)
                handled = len(signals)
            if not (ended or any(node["Alive"] for node in ray.nodes())):
                raise UserError("launcher=ray: all nodes of the cluster have failed; the same command continues")
            for each in ended:
                job = running.pop(each)
                advance(1)
                try:
                    code = ray.get(each)
                except TaskCancelledError:
                    continue
                except RayError as error:
                    say(f"{job.key}: {str(error).strip().splitlines()[0]}")
                    code = 1
                if code not in (0, INTERRUPTED):
                    say(f"{job.key}: ended with exit code {code} ({logs[job]})")
                yield Outcome(job, code)
        if signals:
            raise KeyboardInterrupt


def _check_answers(address: str) -> None:
    """Raise ``UserError`` if nothing answers at an address ``HOST:PORT``, for which Ray would wait for minutes."""
    host, _, port = address.rpartition(":")
    if not port.isdigit() or "/" in host:
        return
    try:
        socket.create_connection((host, int(port)), CONNECT_SECONDS).close()
    except OSError as error:
        raise UserError(
            f"launcher.address={address}: no Ray cluster answers ({error.strerror or error}); start it with ray start"
        ) from error


def run_command(command: Sequence[str], variables: Mapping[str, str], folder: Path, log: Path) -> int:
    """Run the command of a cell on a node, with its output in a log, and return its exit code.

    When the task is cancelled, the command receives SIGTERM; it receives it from the kernel if this process ends.
    """
    log.parent.mkdir(parents=True, exist_ok=True)
    with log.open("w") as output:
        process = subprocess.Popen(
            command,
            cwd=folder,
            env={**os.environ, **variables, PARENT: str(os.getpid())},
            stdin=subprocess.DEVNULL,
            stdout=output,
            stderr=subprocess.STDOUT,
            start_new_session=True,
        )
    while True:
        try:
            while process.poll() is None:
                time.sleep(POLL_SECONDS)
            return process.returncode
        except KeyboardInterrupt:
            process.terminate()
