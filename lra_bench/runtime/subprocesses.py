"""Child processes: start, messages, time limit, lifetime and exit status."""

from __future__ import annotations

import ctypes
import json
import os
import select
import signal
import subprocess
import sys
import tempfile
import time
import traceback
from collections.abc import Callable, Iterator, Mapping
from contextlib import suppress
from pathlib import Path
from typing import IO, Any

from .garbage import skip_final_collection
from .processor import cgroups_of

PR_SET_PDEATHSIG = 1
KEEPING_FREED = {"MALLOC_TRIM_THRESHOLD_": str(1 << 40), "MALLOC_MMAP_THRESHOLD_": str(32 << 20)}
"""Environment variables under which glibc keeps freed blocks of up to 32 MiB, its largest threshold, for reuse.

By default glibc returns the end of the heap to the system when enough of it is free. Depending on the order of the
first allocations, that happens at every step in one process and never in another, and step times differ by half.
"""
PARENT = "LRA_BENCH_PARENT"
"""Environment variable with the process id of the parent."""
UNLISTED = "LRA_BENCH_IMPORT_PATH"
"""Environment variable with a JSON list of the folders of the import path whose names contain its separator."""
LAST_LINES = 20
"""Number of lines of a stack trace that are stored."""

FROM_OUTSIDE = (signal.SIGKILL, signal.SIGTERM, signal.SIGINT, signal.SIGHUP, signal.SIGQUIT)
"""Signals that are sent by the user or the system and not caused by the process itself."""


def environment(folder: str | None = None) -> dict[str, str]:
    """Return the environment variables of a child process, which finds the same modules as this process.

    The import path is that of this process, followed by ``folder``, if given. ``PYTHONSAFEPATH`` excludes the working
    folder, so that the folder of a clone does not shadow an installed package. ``KEEPING_FREED`` is set unless this
    process has other values of these variables.
    """
    path = [entry for entry in (*sys.path, folder) if entry]
    variables = {
        "PYTHONSAFEPATH": "1",
        "PYTHONPATH": os.pathsep.join(entry for entry in path if os.pathsep not in entry),
        UNLISTED: json.dumps([entry for entry in path if os.pathsep in entry]),
        PARENT: str(os.getpid()),
    }
    return {**KEEPING_FREED, **os.environ, **variables}


def start(
    module: str,
    *arguments: str,
    folder: str | None = None,
    variables: Mapping[str, str] | None = None,
    **options: Any,
) -> subprocess.Popen[Any]:
    """Start ``python -m module`` in the ``environment`` with ``variables``; ``options`` are those of ``Popen``."""
    variables = {**environment(folder), **(variables or {})}
    return subprocess.Popen([sys.executable, "-m", module, *arguments], env=variables, **options)


class WorkerFailed(Exception):
    """Raised when a command of a worker has failed; ``status`` and ``reason`` are as in a record."""

    def __init__(self, status: str, reason: str) -> None:
        super().__init__(reason)
        self.status, self.reason = status, reason


class WorkerEnded(WorkerFailed):
    """Raised when a worker has ended, or was killed after a timeout."""


class WorkerProcess:
    """A process that receives a job and commands and sends answers (see ``serve``), one JSON object per line.

    ``module`` is run with ``variables`` added to its environment. Ctrl-C does not reach it. It does not outlive this
    process. Use it as a context manager, or call ``end``.
    """

    def __init__(self, module: str, job: Mapping[str, Any], variables: Mapping[str, str] | None = None) -> None:
        self._errors = tempfile.TemporaryFile(mode="w+", encoding="utf-8", prefix="lra-bench-")  # noqa: SIM115
        self._process = start(
            module,
            variables=variables,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=self._errors,
            bufsize=0,
            start_new_session=True,  # so that on Ctrl-C it prints no traceback
        )
        self._buffer = b""
        self._write(job)

    def __enter__(self) -> WorkerProcess:
        return self

    def __exit__(self, *_: object) -> None:
        self.end()

    def send(self, command: str, **arguments: Any) -> None:
        """Send a command without waiting for its answer."""
        self._write({"command": command, **arguments})

    def receive(self, timeout: float) -> dict[str, Any]:
        """Wait for the answer to the oldest unanswered command.

        Raises ``WorkerFailed`` if the command has failed. Raises ``WorkerEnded`` if the process has ended or there is
        no answer within ``timeout`` seconds; the process is then killed.
        """
        assert self._process.stdout is not None
        deadline, stream = time.monotonic() + timeout, self._process.stdout.fileno()
        while b"\n" not in self._buffer:
            left = deadline - time.monotonic()
            late = left <= 0 or not select.select([stream], [], [], left)[0]
            read = b"" if late else os.read(stream, 1 << 16)
            if not read:
                raise self._ended(late, timeout)
            self._buffer += read
        line, _, self._buffer = self._buffer.partition(b"\n")
        answer: dict[str, Any] = json.loads(line)
        if "failed" in answer:
            raise WorkerFailed(*answer["failed"])
        return answer

    def request(self, timeout: float, command: str, **arguments: Any) -> dict[str, Any]:
        """Send a command and wait for its answer; raises as ``receive`` does."""
        self.send(command, **arguments)
        return self.receive(timeout)

    def end(self) -> None:
        """Kill the process and those that it has started, and close its streams."""
        self._kill()
        for stream in (self._process.stdin, self._process.stdout, self._errors):
            if stream is not None:
                stream.close()

    def _write(self, message: Mapping[str, Any]) -> None:
        """Send a message as one JSON line; does nothing if the process has ended."""
        assert self._process.stdin is not None
        with suppress(OSError):  # the process has ended; ``receive`` reports the reason
            self._process.stdin.write(json.dumps(message).encode() + b"\n")

    def _kill(self) -> None:
        """Kill the process group and wait for the process, unless it has ended."""
        if self._process.poll() is None:
            with suppress(ProcessLookupError):
                os.killpg(self._process.pid, signal.SIGKILL)
        self._process.wait()

    def _ended(self, late: bool, timeout: float) -> WorkerEnded:
        """Return the exception for a process that has ended or, if ``late``, is killed now."""
        if late:
            self._kill()
            return WorkerEnded("timeout", f"no result within {timeout:.0f} s")
        code = self._process.wait()
        if code == -signal.SIGKILL:
            return WorkerEnded("out_of_memory", "the process was killed (SIGKILL), which happens when memory runs out")
        self._errors.seek(0)
        lines = self._errors.read().split("\n")
        last = next((line.strip() for line in reversed(lines) if line.strip()), f"the process {ended_by(code)}")
        return WorkerEnded("failed", last)


def serve(answers: Callable[[IO[str]], Iterator[Any]]) -> None:
    """Write each of ``answers(stdin)`` to stdout, as JSON lines, until stdin ends: the main function of a worker.

    Output of models is redirected to stderr, because stdout is for answers. The process ends with its parent, and is
    the first that the kernel kills when memory runs out.
    """
    prepare_child(signal.SIGKILL, 1000)
    skip_final_collection()
    with os.fdopen(os.dup(sys.stdout.fileno()), "w", encoding="utf-8") as channel:
        os.dup2(sys.stderr.fileno(), sys.stdout.fileno())
        for answer in answers(sys.stdin):
            print(json.dumps(answer), file=channel, flush=True)


def memory_kills() -> int | None:
    """Return how many processes of this control group the kernel has killed for memory, or None if it is unknown.

    Without a control group for memory, all processes of the machine since boot are counted.
    """
    groups = [group for _, group in cgroups_of("memory")]
    counters = [group / name for group in groups for name in ("memory.oom_control", "memory.events")]  # version 1 and 2
    for path in (*counters, Path("/proc/vmstat")):
        with suppress(OSError, StopIteration):
            lines = path.read_text(encoding="ascii").splitlines()
            return next(int(line.split()[1]) for line in lines if line.startswith("oom_kill "))
    return None


def ended_by(code: int) -> str:
    """Describe an exit code: ``ended by signal 9``, ``ended by exit code 1``."""
    return f"ended by signal {-code}" if code < 0 else f"ended by exit code {code}"


def status_of_exit(code: int, kills_before: int | None) -> tuple[str, str]:
    """Return the status and reason of a process that ended without reporting a result.

    Args:
        code: Exit code, negative for a signal.
        kills_before: Value of ``memory_kills`` before the process was started.

    Returns:
        ``interrupted`` if the process was killed from outside, ``out_of_memory`` if the kernel killed it for memory,
        otherwise ``failed``; and the reason in words.
    """
    how = ended_by(code)
    if code == -signal.SIGKILL and kills_before is not None and (memory_kills() or 0) > kills_before:
        return "out_of_memory", f"{how}: the machine's memory ran out"
    if -code in FROM_OUTSIDE:
        unknown = ", or for memory (not reported by this kernel)" if kills_before is None else ""
        return "interrupted", f"{how}, from outside{unknown}; the same command resumes"
    return "failed", how


def prepare_child(death_signal: signal.Signals, kill_preference: int) -> None:
    """Complete the import path of this process (``UNLISTED``), call ``end_with_parent``, and set its kill preference.

    ``kill_preference`` is the kernel's out-of-memory score (0 to 1000); processes with a higher score are killed first.
    """
    sys.path += [entry for entry in json.loads(os.environ.get(UNLISTED, "[]")) if entry not in sys.path]
    end_with_parent(death_signal)
    with suppress(OSError):
        Path("/proc/self/oom_score_adj").write_text(str(kill_preference), encoding="ascii")


def end_with_parent(number: signal.Signals) -> None:
    """Make the kernel send signal ``number`` to this process when its parent ends; on Linux only.

    If the parent, identified by the process id in ``PARENT``, has already ended, the signal is sent immediately.
    """
    with suppress(OSError, AttributeError):
        ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, number)
    parent = os.environ.get(PARENT)
    if parent and os.getppid() != int(parent):
        os.kill(os.getpid(), number)


def stage_reporter(descriptor: int | None) -> Callable[[str], None]:
    """Return a function that reports the name of the current stage to the parent through a pipe, if there is one."""

    def report(stage: str) -> None:
        if descriptor is not None:
            with suppress(OSError):  # the parent has closed the pipe
                os.write(descriptor, f"{stage}\n".encode())

    return report


def last_lines(error: BaseException) -> tuple[str, ...]:
    """Return the last ``LAST_LINES`` lines of an exception's stack trace, with paths relative to the import path."""
    trace = "".join(traceback.format_exception(error)).splitlines()
    return tuple(without_folders(line) for line in trace if line.strip())[-LAST_LINES:]


def without_folders(line: str) -> str:
    """Return ``line`` with file paths relative to the import path."""
    for folder in sorted({entry for entry in sys.path if len(entry) > 1}, key=len, reverse=True):
        line = line.replace(folder + os.sep, "")
    return line
