"""Cells in forks of the test process instead of new interpreters, which would import everything again.

Only for cells that end before they compute: a fork must not use the threads or the GPU of its parent.
"""

import os
import signal
import subprocess
import sys
from collections.abc import Sequence
from contextlib import suppress
from types import SimpleNamespace
from typing import Any, TextIO

import pytest

from lra_bench.cells import run
from lra_bench.cells import subprocess as cell_subprocess


def fork_cells(monkeypatch: pytest.MonkeyPatch) -> None:
    """Start the cells of ``lra_bench.cells.subprocess.CellProcess`` as forks."""
    import datasets  # what a cell imports, so that its fork has it
    import pyarrow.parquet

    from lra_bench.cells import stages
    from lra_bench.records import environment

    assert datasets and pyarrow.parquet and stages and environment
    replacement = SimpleNamespace(Popen=ForkedProcess, PIPE=subprocess.PIPE)
    monkeypatch.setattr(cell_subprocess, "subprocess", replacement)


class ForkedProcess:
    """In place of ``subprocess.Popen`` in ``lra_bench.cells.subprocess``."""

    def __init__(
        self, command: Sequence[str], *, stderr: int, env: dict[str, str], stdout: TextIO | None = None, **_: Any
    ) -> None:
        assert list(command) == [sys.executable, "-m", run.__name__]
        self.returncode: int | None = None
        request, end = os.pipe()
        self.pid = os.fork()
        if not self.pid:
            _run_cell(request, end, stderr, env, stdout)
        os.close(request)
        self.stdin = os.fdopen(end, "w")

    def poll(self) -> int | None:
        return self._wait(os.WNOHANG)

    def wait(self) -> int | None:
        return self._wait(0)

    def send_signal(self, number: int) -> None:
        if self.poll() is None:
            os.kill(self.pid, number)

    def kill(self) -> None:
        self.send_signal(signal.SIGKILL)

    def _wait(self, options: int) -> int | None:
        if self.returncode is None:
            ended, status = os.waitpid(self.pid, options)
            if ended:
                self.returncode = os.waitstatus_to_exitcode(status)
        return self.returncode


def _run_cell(request: int, end: int, stderr: int, env: dict[str, str], stdout: TextIO | None) -> None:
    code = 1
    with suppress(BaseException):
        os.close(end)
        os.dup2(request, 0)
        os.dup2(stderr, 2)
        if stdout is not None:
            os.dup2(stdout.fileno(), 1)
        sys.stdin, sys.stdout, sys.stderr = os.fdopen(0), os.fdopen(1, "w"), os.fdopen(2, "w")
        os.environ.clear()
        os.environ.update(env)
        sys.path[:] = env["PYTHONPATH"].split(os.pathsep)
        try:
            code = run.main()
        except BaseException:
            sys.excepthook(*sys.exc_info())
        sys.stdout.flush()
        sys.stderr.flush()
    os._exit(code)
