"""Processes that measure: one that runs one job and ends, one that answers commands, and a pool of these."""

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
from pathlib import Path
from typing import IO, Any

from lra_bench.runtime.subprocesses import environment


class Ended(Exception):
    """A process ended, or was ended for its silence; ``status`` and ``reason`` as in a record."""

    def __init__(self, status: str, reason: str) -> None:
        super().__init__(reason)
        self.status, self.reason = status, reason


class WorkerProcess:
    """A process that answers commands, a line of JSON each, until it is ended; it does not outlive this one.

    ``module`` is run with ``variables`` added to its environment, and told ``job`` first.
    """

    def __init__(self, module: str, job: Mapping[str, Any], variables: Mapping[str, str] | None = None) -> None:
        self._errors = tempfile.TemporaryFile(mode="w+", encoding="utf-8", prefix="lra-bench-")  # noqa: SIM115
        self._process = _start(module, variables, stdout=subprocess.PIPE, stderr=self._errors)
        self._rest = b""
        self._write(job)

    def tell(self, command: str, **arguments: Any) -> None:
        """Give a command and do not wait for its answer."""
        self._write({"command": command, **arguments})

    def hear(self, seconds: float) -> dict[str, Any]:
        """The answer to the oldest command without one; ``Ended`` where none comes within ``seconds``."""
        assert self._process.stdout is not None
        deadline, stream = time.monotonic() + seconds, self._process.stdout.fileno()
        while b"\n" not in self._rest:
            left = deadline - time.monotonic()
            late = left <= 0 or not select.select([stream], [], [], left)[0]
            read = b"" if late else os.read(stream, 1 << 16)
            if not read:
                raise self._ended(late, seconds)
            self._rest += read
        line, _, self._rest = self._rest.partition(b"\n")
        answer: dict[str, Any] = json.loads(line)
        return answer

    def ask(self, seconds: float, command: str, **arguments: Any) -> dict[str, Any]:
        """Give a command and wait for its answer; ``Ended`` where none comes within ``seconds``."""
        self.tell(command, **arguments)
        return self.hear(seconds)

    def end(self) -> None:
        """End the process, whatever it does."""
        self._process.kill()
        self._process.wait()
        for stream in (self._process.stdin, self._process.stdout, self._errors):
            if stream is not None:
                stream.close()

    def _write(self, message: Mapping[str, Any]) -> None:
        assert self._process.stdin is not None
        with suppress(OSError):  # it has ended: whoever waits for the answer learns why
            self._process.stdin.write(json.dumps(message).encode() + b"\n")

    def _ended(self, late: bool, seconds: float) -> Ended:
        if late:
            self._process.kill()
        self._process.wait()
        self._errors.seek(0)
        return Ended(*ending(self._process.returncode, late, seconds, self._errors.read()))


def run_worker(
    job: Mapping[str, Any],
    timeout_seconds: float,
    variables: Mapping[str, str] | None = None,
    module: str = "lra_bench.profiling.worker",
) -> tuple[list[dict[str, Any]], tuple[str, str]]:
    """Run one job in a fresh process: its findings, and status and reason for what it did not find.

    ``module`` is run, with ``variables`` added to its environment. The process is ended with this one's, on Ctrl-C too.
    """
    with tempfile.TemporaryDirectory(prefix="lra-bench-") as folder:
        answers, errors = Path(folder, "answers.jsonl"), Path(folder, "errors.txt")
        answers.touch()
        with errors.open("w", encoding="utf-8") as stream:
            process = _start(module, variables, stdout=stream, stderr=stream)
            late = False
            try:
                process.communicate(json.dumps({**job, "answers": str(answers)}).encode(), timeout=timeout_seconds)
            except subprocess.TimeoutExpired:
                late = True
            finally:
                process.kill()
                process.wait()
        found = [json.loads(line) for line in answers.read_text(encoding="utf-8").splitlines()]
        return found, ending(process.returncode, late, timeout_seconds, errors.read_text(encoding="utf-8"))


def ending(returncode: int, late: bool, timeout_seconds: float, output: str) -> tuple[str, str]:
    """Status and reason for a process that ended without an answer, from its exit code and its ``output``."""
    if late:
        return "timeout", f"no result within {timeout_seconds:.0f} s"
    if returncode == -signal.SIGKILL:
        return "out_of_memory", "the kernel killed the process, as it does when memory runs out"
    lines = [line.strip() for line in output.splitlines() if line.strip()]
    return "failed", lines[-1] if lines else f"the process ended with code {returncode}"


@dataclass
class WorkerPool:
    """Worker processes by the name of the model, those that measure memory by the mode too; use as a context.

    Starting one takes longer than most turns, so they are kept from length to length and from visit to visit.
    """

    timing: dict[str, WorkerProcess] = field(default_factory=dict)
    memory: dict[tuple[str, str], WorkerProcess] = field(default_factory=dict)

    def __enter__(self) -> WorkerPool:
        return self

    def __exit__(self, *_: object) -> None:
        self.end_memory_processes()
        for live in reversed(self.timing.values()):
            live.end()

    def end_memory_processes(self) -> None:
        """End the processes that measure memory, once no length is new."""
        while self.memory:
            self.memory.popitem()[1].end()


def _start(module: str, variables: Mapping[str, str] | None, stdout: Any, stderr: IO[str]) -> subprocess.Popen[bytes]:
    return subprocess.Popen(
        [sys.executable, "-m", module],
        stdin=subprocess.PIPE,
        stdout=stdout,
        stderr=stderr,
        env={**environment(), **(variables or {})},
        bufsize=0,
        # Ctrl-C reaches this process alone, which then ends the other: no trace of the child's is printed.
        start_new_session=True,
    )
