"""Worker processes for measurements: those that run jobs, one that answers commands, and a pool of these."""

from __future__ import annotations

import json
import os
import select
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from typing import IO, Any

from lra_bench.runtime.subprocesses import environment


class WorkerEnded(Exception):
    """Raised when a worker has ended, or was killed after a timeout; ``status`` and ``reason`` are as in a record."""

    def __init__(self, status: str, reason: str) -> None:
        super().__init__(reason)
        self.status, self.reason = status, reason


class WorkerProcess:
    """A process that receives commands and sends answers, one JSON object per line; it does not outlive this process.

    ``module`` is run with ``variables`` added to its environment and first receives ``job``.
    """

    def __init__(self, module: str, job: Mapping[str, Any], variables: Mapping[str, str] | None = None) -> None:
        self._errors = tempfile.TemporaryFile(mode="w+", encoding="utf-8", prefix="lra-bench-")  # noqa: SIM115
        self._process = _start(module, variables, stdout=subprocess.PIPE, stderr=self._errors)
        self._buffer = b""
        self.send_job(job)

    def send_job(self, job: Mapping[str, Any]) -> None:
        """Send a job, whose results are received as answers."""
        self._write(job)

    def send(self, command: str, **arguments: Any) -> None:
        """Send a command without waiting for its answer."""
        self._write({"command": command, **arguments})

    def receive(self, timeout: float, since: float | None = None) -> dict[str, Any]:
        """Wait for the answer to the oldest unanswered command.

        Raises ``WorkerEnded`` if the process has ended or there is no answer within ``timeout`` seconds, counted from
        ``since`` on the monotonic clock, by default from now; the process is then killed.
        """
        assert self._process.stdout is not None
        deadline, stream = (since or time.monotonic()) + timeout, self._process.stdout.fileno()
        while b"\n" not in self._buffer:
            left = deadline - time.monotonic()
            late = left <= 0 or not select.select([stream], [], [], left)[0]
            read = b"" if late else os.read(stream, 1 << 16)
            if not read:
                raise self._ended(late, timeout)
            self._buffer += read
        line, _, self._buffer = self._buffer.partition(b"\n")
        answer: dict[str, Any] = json.loads(line)
        return answer

    def request(self, timeout: float, command: str, **arguments: Any) -> dict[str, Any]:
        """Send a command and wait for its answer; raises ``WorkerEnded`` as ``receive`` does."""
        self.send(command, **arguments)
        return self.receive(timeout)

    def end(self) -> None:
        """Kill the process and close its streams."""
        self._process.kill()
        self._process.wait()
        for stream in (self._process.stdin, self._process.stdout, self._errors):
            if stream is not None:
                stream.close()

    def _write(self, message: Mapping[str, Any]) -> None:
        """Send a message as one JSON line; does nothing if the process has ended."""
        assert self._process.stdin is not None
        with suppress(OSError):  # the process has ended; ``receive`` reports the reason
            self._process.stdin.write(json.dumps(message).encode() + b"\n")

    def _ended(self, late: bool, timeout: float) -> WorkerEnded:
        """Return the exception for a process that has ended or, if ``late``, is killed now."""
        if late:
            self._process.kill()
        self._process.wait()
        self._errors.seek(0)
        return WorkerEnded(*exit_status(self._process.returncode, late, timeout, self._errors.read()))


class JobWorkers:
    """Processes that run jobs: with ``reused`` one process for each set of variables, otherwise one for each job.

    Use it as a context manager, which ends the processes.
    """

    def __init__(self, reused: bool, module: str = "lra_bench.profiling.worker") -> None:
        self._reused, self._module = reused, module
        self._idle: dict[tuple[tuple[str, str], ...], WorkerProcess] = {}

    def __enter__(self) -> JobWorkers:
        return self

    def __exit__(self, *_: object) -> None:
        while self._idle:
            self._idle.popitem()[1].end()

    def run(
        self, job: Mapping[str, Any], timeout_seconds: float, variables: Mapping[str, str] | None = None
    ) -> tuple[list[dict[str, Any]], tuple[str, str]]:
        """Run one job; return its results, and status and reason for missing results.

        The process has ``variables`` added to its environment. It is killed after ``timeout_seconds``, and when this
        method exits with an exception, such as ``KeyboardInterrupt``.
        """
        kind, began = tuple((variables or {}).items()), time.monotonic()
        worker = self._idle.pop(kind, None)
        if worker is None:
            worker = WorkerProcess(self._module, job, variables)
        else:
            worker.send_job(job)
        results: list[dict[str, Any]] = []
        try:
            while answer := worker.receive(timeout_seconds, began):
                results.append(answer)
            if self._reused:
                self._idle[kind] = worker
        except WorkerEnded as ended:
            return results, (ended.status, ended.reason)
        finally:
            if kind not in self._idle:
                worker.end()
        return results, ("failed", "the process reported no result")


def run_worker(
    job: Mapping[str, Any],
    timeout_seconds: float,
    variables: Mapping[str, str] | None = None,
    module: str = "lra_bench.profiling.worker",
) -> tuple[list[dict[str, Any]], tuple[str, str]]:
    """Run one job in a fresh process of ``module``; arguments and result are those of ``JobWorkers.run``."""
    with JobWorkers(False, module) as workers:
        return workers.run(job, timeout_seconds, variables)


def exit_status(returncode: int, late: bool, timeout_seconds: float, output: str) -> tuple[str, str]:
    """Return status and reason for a process that ended without an answer, from its exit code and its ``output``.

    ``late`` is whether it was killed after a timeout.
    """
    if late:
        return "timeout", f"no result within {timeout_seconds:.0f} s"
    if returncode == -signal.SIGKILL:
        return "out_of_memory", "the process was killed (SIGKILL), which happens when memory runs out"
    lines = [line.strip() for line in output.splitlines() if line.strip()]
    return "failed", lines[-1] if lines else f"the process ended with code {returncode}"


@dataclass
class WorkerPool:
    """Worker processes: ``timing`` by model, ``memory`` by model and mode. Use it as a context manager.

    Starting a process takes longer than most timing rounds, so processes are reused for all lengths and visits.
    """

    timing: dict[str, WorkerProcess] = field(default_factory=dict)
    memory: dict[tuple[str, str], WorkerProcess] = field(default_factory=dict)

    def __enter__(self) -> WorkerPool:
        return self

    def __exit__(self, *_: object) -> None:
        self.end_memory_processes()
        for worker in reversed(self.timing.values()):
            worker.end()

    def end_memory_processes(self) -> None:
        """End the processes that measure memory, after the last length."""
        while self.memory:
            self.memory.popitem()[1].end()


def _start(module: str, variables: Mapping[str, str] | None, stdout: Any, stderr: IO[str]) -> subprocess.Popen[bytes]:
    """Start a module with ``variables`` added to its environment and a pipe as its stdin."""
    return subprocess.Popen(
        [sys.executable, "-m", module],
        stdin=subprocess.PIPE,
        stdout=stdout,
        stderr=stderr,
        env={**environment(), **(variables or {})},
        bufsize=0,
        # Ctrl-C reaches only this process, which then ends the child, so that the child prints no traceback.
        start_new_session=True,
    )
