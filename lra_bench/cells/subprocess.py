"""Run a cell in a subprocess: forward its stderr, enforce the timeout, record crashes."""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import sys
import threading
from collections.abc import Sequence
from contextlib import closing, suppress
from pathlib import Path
from typing import IO

from lra_bench.progress import Forwarded, child_variables
from lra_bench.records import store
from lra_bench.records.schema import Record
from lra_bench.runtime.limits import MEMORY_WORDS
from lra_bench.runtime.signals import blocked
from lra_bench.runtime.subprocesses import LAST_LINES, memory_kills, start, status_of_exit, without_folders

from .cell import RECORDED, Cell, already_completed, blank_record, exit_code
from .locks import cell_lock

WRONG_INPUT, INTERRUPTED = 2, 130

GRACE_SECONDS = 60.0
"""Seconds after its timeout that a cell may take to stop by itself and write its record, before it is killed."""

STARTING = "starting"
"""The stage before the process of a cell reports its first stage."""

TAIL_BYTES = 1 << 14
CONTROL = re.compile(r"\x1b\[[0-9;?]*[A-Za-z]")


def write_unmeasured_record(
    cell: Cell, number: int, results: Path, status: str, reason: str, last_lines: tuple[str, ...] = ()
) -> Record:
    """Write a record for a cell that was not run, or whose process ended without a record.

    Returns the record that is now stored for the cell. An unfinished record does not replace a finished one.
    """
    from lra_bench.records.environment import environment as describe

    record = blank_record(cell, number, describe(None))
    record.status, record.reason, record.last_lines = status, reason, list(last_lines)
    return store.keep_best(record, results)


class CellProcess:
    """The process of one attempt at a cell.

    Its stderr is forwarded. The last lines of stderr and the name of the current stage are stored.

    Args:
        cell: The cell to measure.
        number: Number of the attempt, from 1.
        results: The results folder.
        restart: Whether to ignore the checkpoints of earlier attempts.
        cores: CPU cores that the process may use; None for all.
        gpus: ``CUDA_VISIBLE_DEVICES`` of the process; None leaves it unchanged.
        log: File that receives the output instead of this process's stderr. The process then runs in its own process
            group, so that Ctrl-C in the terminal does not reach it.
    """

    def __init__(
        self,
        cell: Cell,
        number: int,
        results: Path,
        restart: bool = False,
        cores: Sequence[int] | None = None,
        gpus: str | None = None,
        log: IO[str] | None = None,
    ) -> None:
        self.cell, self.number, self.results = cell, number, results
        self.limit: float | None = cell.config.hardware.timeout_seconds
        self.stage, self.late, self.stop_requested = STARTING, False, False
        self._tail = b""
        self._timer: threading.Timer | None = None
        self._kills = memory_kills()
        own = log or (sys.stderr if sys.stderr is sys.__stderr__ else None)
        self._output = Forwarded() if own is None else os.fdopen(os.dup(own.fileno()), "wb", buffering=0)
        read_end, write_end = os.pipe()
        stages, stage = os.pipe()
        variables = {} if gpus is None else {"CUDA_VISIBLE_DEVICES": gpus}
        if log is None:
            variables |= child_variables()
        with blocked():  # the process unblocks signals after its imports, when its handlers are installed
            self._process = start(
                "lra_bench.cells.run",
                folder=cell.config_dir,
                variables=variables,
                stdin=subprocess.PIPE,
                stdout=log,
                stderr=write_end,
                # Inherit the reading end too: if this process is killed, writing to stderr must not fail.
                pass_fds=(stage, read_end),
                process_group=None if log is None else 0,
                text=True,
            )
        os.close(write_end)
        os.close(stage)
        self._readers = [
            threading.Thread(target=self._forward, args=(read_end,), daemon=True),
            threading.Thread(target=self._follow_stages, args=(stages,), daemon=True),
        ]
        for reader in self._readers:
            reader.start()
        request = {
            "cell": cell.as_json(),
            "results": str(results),
            "attempt": number,
            "restart": restart,
            "stages": stage,
            "cores": cores,
        }
        assert self._process.stdin is not None
        with suppress(BrokenPipeError):  # the process has already ended; outcome() handles its exit code
            self._process.stdin.write(json.dumps(request))
            self._process.stdin.close()

    def poll(self) -> int | None:
        """Return the exit code, or None while the process runs."""
        return self._process.poll()

    def stop(self, number: signal.Signals) -> None:
        """Send a signal that stops the process: SIGINT after the current step, SIGTERM immediately, SIGKILL by force.

        A process that is still starting is killed, because it has nothing to save yet.
        """
        self.stop_requested = True
        self._process.send_signal(signal.SIGKILL if self.stage == STARTING else number)

    def kill(self) -> None:
        """Kill the process and wait for it."""
        self._process.kill()
        self._process.wait()

    def outcome(self) -> tuple[Record | None, int]:
        """Wait for the process and return the record of the cell and an exit code.

        If the process ended without a record, a record with the status of the crash is written. The record is None if
        the input was wrong. The exit code is 0 for success, 1 for a failure status, 2 for wrong input, 130 for an
        interruption.
        """
        code = self._process.wait()
        if self._timer is not None:
            self._timer.cancel()
        for reader in self._readers:
            # A subprocess of the cell may still run and keep the pipe open.
            reader.join(timeout=1)
        key = self.cell.key
        if code in (0, WRONG_INPUT, RECORDED):
            return (None if code == WRONG_INPUT else store.find(key, self.results)), 1 if code == RECORDED else code
        stopped = (
            code == INTERRUPTED
            or (self.stop_requested and code == -signal.SIGKILL)
            or (self.stage == STARTING and code == -signal.SIGTERM)
        )
        with cell_lock(key, self.results):
            # The process may have been killed after its record was written.
            record = store.find(key, self.results)
            if record is not None and (
                already_completed(record, self.number) or (stopped and record.attempt >= self.number)
            ):
                return record, INTERRUPTED if stopped else exit_code(record.status)
            status, reason = self._crash_status(code, stopped)
            record = write_unmeasured_record(self.cell, self.number, self.results, status, reason, self.last_lines)
            return record, INTERRUPTED if stopped else 1

    def _crash_status(self, code: int, stopped: bool) -> tuple[str, str]:
        """Return status and reason for a process that ended without writing a record."""
        if stopped:
            return "interrupted", f"{self.stage}: stopped by a signal; the same command resumes"
        if self.late:
            return (
                "timeout",
                f"{self.stage}: hardware.timeout_seconds={self.limit} exceeded, and the process did not stop",
            )
        status, reason = status_of_exit(code, self._kills)
        if status == "failed" and any(words in line for line in self.last_lines for words in MEMORY_WORDS):
            status = "out_of_memory"
        return status, f"{self.stage}: the process of the cell {reason}"

    @property
    def last_lines(self) -> tuple[str, ...]:
        """The last lines that the process wrote to stderr."""
        text = CONTROL.sub("", self._tail.decode(errors="replace"))
        lines = [line.rstrip() for line in re.split(r"[\r\n]+", text)]
        return tuple(without_folders(line) for line in lines if line)[-LAST_LINES:]

    def _forward(self, descriptor: int) -> None:
        """Forward stderr of the process and store its last bytes."""
        with os.fdopen(descriptor, "rb", buffering=0) as stream, closing(self._output) as to:
            while read := stream.read(1 << 16):
                self._tail = (self._tail + read)[-TAIL_BYTES:]
                with suppress(OSError, ValueError):
                    to.write(read)

    def _follow_stages(self, descriptor: int) -> None:
        """Store the name of each reported stage; start the timeout at the first, so that lock waits do not count."""
        with os.fdopen(descriptor, encoding="utf-8") as stream:
            for line in stream:
                self.stage = line.strip()
                if self.limit and self._timer is None:
                    self._timer = threading.Timer(self.limit + GRACE_SECONDS, self._kill_late)
                    self._timer.daemon = True
                    self._timer.start()

    def _kill_late(self) -> None:
        self.late = True
        self._process.send_signal(signal.SIGKILL)
