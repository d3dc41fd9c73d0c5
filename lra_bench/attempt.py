"""One attempt at a cell in a process of its own, which is heard, timed, and spoken for when it dies."""

from __future__ import annotations

import json
import os
import re
import shutil
import signal
import subprocess
import sys
import threading
from contextlib import suppress
from pathlib import Path

from lra_bench.cell import RECORDED, Cell, blank_record, exit_code, holding, made_meanwhile
from lra_bench.child import LAST_LINES, death, environment, memory_kills, without_folders
from lra_bench.limits import MEMORY_WORDS
from lra_bench.progress import TERMINAL_COLUMNS, on_terminal
from lra_bench.records import store
from lra_bench.records.schema import Record

GRACE_SECONDS = 60.0
"""How long a cell may take after its time limit to stop by itself and write its record."""

TAIL_BYTES = 1 << 14
CONTROL = re.compile(r"\x1b\[[0-9;?]*[A-Za-z]")


def attempt(cell: Cell, before: Record | None, results: Path, anew: bool = False) -> tuple[Record | None, int]:
    """Measure a cell in a fresh process: the record that stands, None where the input was wrong, and the exit code.

    ``before`` is the record of an earlier attempt. With ``anew`` no checkpoint is taken up. Nothing is started where
    another process has made this attempt meanwhile. The code is 130 where this process or the cell's was interrupted.
    """
    number = before.attempt + 1 if before else 1
    done = store.find(cell.key, results)
    if made_meanwhile(done, number):
        assert done is not None
        return done, exit_code(done.status)
    kills = memory_kills()
    process = Process(cell, number, results, anew)
    code = process.wait()
    if code in (0, 2, 130, RECORDED):
        return (None if code == 2 else store.find(cell.key, results)), 1 if code == RECORDED else code
    with holding(cell.key, results):
        # It may have died after its record was written.
        record = store.find(cell.key, results)
        if made_meanwhile(record, number):
            assert record is not None
            return record, exit_code(record.status)
        status, reason = process.ending(code, kills)
        return _record_for(cell, number, results, status, reason, process.last_lines), 1


def _record_for(
    cell: Cell, number: int, results: Path, status: str, reason: str, last_lines: tuple[str, ...] = ()
) -> Record:
    """Record a cell that could not speak for itself; the record that stands."""
    from lra_bench.records.environment import environment as examine

    record = blank_record(cell, number, examine(None))
    record.status, record.reason, record.last_lines = status, reason, list(last_lines)
    return store.keep_best(record, results)


def record_incompatible(cell: Cell, before: Record | None, results: Path, reason: str) -> Record:
    """Record that a cell is not to be run at all; the record that stands."""
    return _record_for(cell, before.attempt + 1 if before else 1, results, "incompatible", reason)


class Process:
    """The process of one attempt: what it writes to stderr is passed on, its stages and its last lines are kept."""

    def __init__(self, cell: Cell, number: int, results: Path, anew: bool) -> None:
        self.limit: float | None = cell.config["hardware"]["timeout_seconds"]
        self.stage, self.late = "starting", False
        self._tail = b""
        self._timer: threading.Timer | None = None
        heard, told = os.pipe()
        stages, stage = os.pipe()
        columns = {TERMINAL_COLUMNS: str(shutil.get_terminal_size().columns)} if on_terminal() else {}
        self._process = subprocess.Popen(
            [sys.executable, "-m", "lra_bench.cell"],
            stdin=subprocess.PIPE,
            stderr=told,
            env={**environment(cell.config_dir), **columns},
            # It holds the reading end too: where this process dies, it can still say what it has to say.
            pass_fds=(stage, heard),
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
            self._process.stdin.write(json.dumps(request))
            self._process.stdin.close()

    def wait(self) -> int:
        """Wait for its end; its exit code, 130 where Ctrl-C was pressed."""
        try:
            code = self._process.wait()
        except KeyboardInterrupt:
            # The terminal has told the child as well; it ends at its next step, after its checkpoint.
            self._process.wait()
            code = 130
        if self._timer is not None:
            self._timer.cancel()
        for listener in self._listeners:
            # What it started may live on and keep the pipe open.
            listener.join(timeout=1)
        return code

    def ending(self, code: int, kills_before: int | None) -> tuple[str, str]:
        """Status and reason for a process that left no record of its own."""
        if self.late:
            return "timeout", f"{self.stage}: hardware.timeout_seconds={self.limit} were over, and it did not stop"
        status, reason = death(code, kills_before)
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
        with os.fdopen(descriptor, "rb", buffering=0) as stream:
            while read := stream.read(1 << 16):
                self._tail = (self._tail + read)[-TAIL_BYTES:]
                with suppress(OSError, ValueError):
                    os.write(sys.stderr.fileno(), read)

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
