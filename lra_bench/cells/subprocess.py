"""Run a cell in a subprocess: pass stderr on, enforce the timeout, record crashes."""

from __future__ import annotations

import json
import os
import re
import shutil
import signal
import subprocess
import sys
import threading
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path
from typing import IO

from lra_bench.progress import TERMINAL_COLUMNS, on_terminal
from lra_bench.records import store
from lra_bench.records.schema import Record
from lra_bench.runtime.limits import MEMORY_WORDS
from lra_bench.runtime.signals import blocked
from lra_bench.runtime.subprocesses import LAST_LINES, environment, memory_kills, status_of_exit, without_folders

from .cell import RECORDED, Cell, already_completed, blank_record, exit_code
from .locks import cell_lock

WRONG_INPUT, INTERRUPTED = 2, 130

GRACE_SECONDS = 60.0
"""How long a cell may take after its time limit to stop by itself and write its record."""

STARTING = "starting"
"""The stage before the first one that the process of a cell tells of."""

TAIL_BYTES = 1 << 14
CONTROL = re.compile(r"\x1b\[[0-9;?]*[A-Za-z]")


def write_placeholder_record(
    cell: Cell, number: int, results: Path, status: str, reason: str, last_lines: tuple[str, ...] = ()
) -> Record:
    """Record a cell that was not run, or could not speak for itself; the record that stands."""
    from lra_bench.records.environment import environment as examine

    record = blank_record(cell, number, examine(None))
    record.status, record.reason, record.last_lines = status, reason, list(last_lines)
    return store.keep_best(record, results)


class CellProcess:
    """The process of one attempt: what it writes to stderr is passed on, its stages and its last lines are kept.

    ``cores`` are those it may use, ``cards`` its ``CUDA_VISIBLE_DEVICES``; None leaves them all. With ``anew`` no
    checkpoint is taken up. With a ``log`` it writes there, and the terminal does not tell it of Ctrl-C.
    """

    def __init__(
        self,
        cell: Cell,
        number: int,
        results: Path,
        anew: bool = False,
        cores: Sequence[int] | None = None,
        cards: str | None = None,
        log: IO[str] | None = None,
    ) -> None:
        self.cell, self.number, self.results = cell, number, results
        self.limit: float | None = cell.config.hardware.timeout_seconds
        self.stage, self.late, self.asked = STARTING, False, False
        self._tail = b""
        self._timer: threading.Timer | None = None
        self._kills = memory_kills()
        self._passed_on = os.dup((log or sys.stderr).fileno())
        heard, told = os.pipe()
        stages, stage = os.pipe()
        variables = environment(cell.config_dir)
        if cards is not None:
            variables["CUDA_VISIBLE_DEVICES"] = cards
        if log is None and on_terminal():
            variables[TERMINAL_COLUMNS] = str(shutil.get_terminal_size().columns)
        with blocked():  # until it has imported what it needs and handles them
            self._process = subprocess.Popen(
                [sys.executable, "-m", "lra_bench.cells.run"],
                stdin=subprocess.PIPE,
                stdout=log,
                stderr=told,
                env=variables,
                # It holds the reading end too: where this process dies, it can still say what it has to say.
                pass_fds=(stage, heard),
                process_group=None if log is None else 0,
                text=True,
            )
        os.close(told)
        os.close(stage)
        self._listeners = [
            threading.Thread(target=self._hear, args=(heard,), daemon=True),
            threading.Thread(target=self._follow, args=(stages,), daemon=True),
        ]
        for listener in self._listeners:
            listener.start()
        request = {"cell": cell.as_json(), "results": str(results), "attempt": number, "anew": anew, "stages": stage}
        assert self._process.stdin is not None
        with suppress(BrokenPipeError):  # it has ended: its exit code says how
            self._process.stdin.write(json.dumps({**request, "cores": cores}))
            self._process.stdin.close()

    @property
    def pid(self) -> int:
        """The number of the process."""
        return self._process.pid

    def poll(self) -> int | None:
        """The exit code, None while it runs."""
        return self._process.poll()

    def stop(self, number: signal.Signals) -> None:
        """Ask it to stop: by SIGINT after its step, by SIGTERM at once; SIGKILL ends it whatever it does.

        One that is still starting is killed, for there is nothing to be kept.
        """
        self.asked = True
        self._process.send_signal(signal.SIGKILL if self.stage == STARTING else number)

    def kill(self) -> None:
        """End it, whatever it does."""
        self._process.kill()
        self._process.wait()

    def outcome(self) -> tuple[Record | None, int]:
        """Of a process that has ended, the record that stands, None where the input was wrong, and an exit code.

        The code is 0 for a good end, 1 for a bad one, 2 for wrong input, 130 for an interruption.
        """
        code = self._process.wait()
        if self._timer is not None:
            self._timer.cancel()
        for listener in self._listeners:
            # What it started may live on and keep the pipe open.
            listener.join(timeout=1)
        key = self.cell.key
        if code in (0, WRONG_INPUT, RECORDED):
            return (None if code == WRONG_INPUT else store.find(key, self.results)), 1 if code == RECORDED else code
        stopped = code == INTERRUPTED or (self.asked and code == -signal.SIGKILL)
        with cell_lock(key, self.results):
            # It may have died after its record was written.
            record = store.find(key, self.results)
            if record is not None and (
                already_completed(record, self.number) or (stopped and record.attempt >= self.number)
            ):
                return record, INTERRUPTED if stopped else exit_code(record.status)
            status, reason = self._ending(code, stopped)
            record = write_placeholder_record(self.cell, self.number, self.results, status, reason, self.last_lines)
            return record, INTERRUPTED if stopped else 1

    def _ending(self, code: int, stopped: bool) -> tuple[str, str]:
        """Status and reason for a process that left no record of its own."""
        if stopped:
            return "interrupted", f"{self.stage}: stopped by a signal; the same command resumes"
        if self.late:
            return "timeout", f"{self.stage}: hardware.timeout_seconds={self.limit} were over, and it did not stop"
        status, reason = status_of_exit(code, self._kills)
        if status == "failed" and any(words in line for line in self.last_lines for words in MEMORY_WORDS):
            status = "out_of_memory"
        return status, f"{self.stage}: the process of the cell {reason}"

    @property
    def last_lines(self) -> tuple[str, ...]:
        """What it said last on stderr."""
        text = CONTROL.sub("", self._tail.decode(errors="replace"))
        lines = [line.rstrip() for line in re.split(r"[\r\n]+", text)]
        return tuple(without_folders(line) for line in lines if line)[-LAST_LINES:]

    def _hear(self, descriptor: int) -> None:
        with os.fdopen(descriptor, "rb", buffering=0) as stream, os.fdopen(self._passed_on, "wb", buffering=0) as to:
            while read := stream.read(1 << 16):
                self._tail = (self._tail + read)[-TAIL_BYTES:]
                with suppress(OSError, ValueError):
                    to.write(read)

    def _follow(self, descriptor: int) -> None:
        """Keep the name of the stage, and the time from the first one on: waiting for another process is no part."""
        with os.fdopen(descriptor, encoding="utf-8") as stream:
            for line in stream:
                self.stage = line.strip()
                if self.limit and self._timer is None:
                    self._timer = threading.Timer(self.limit + GRACE_SECONDS, self._end)
                    self._timer.daemon = True
                    self._timer.start()

    def _end(self) -> None:
        self.late = True
        self._process.send_signal(signal.SIGKILL)
