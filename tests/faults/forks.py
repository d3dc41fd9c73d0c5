"""Cells in forks of a process that has imported everything, so that a kill costs no start-up.

``python -m tests.faults.forks`` reads a request per line and answers with the number of the fork; after a further line,
and the end of the fork, with its exit code.
"""

from __future__ import annotations

import io
import json
import os
import signal
import subprocess
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

from lra_bench.cells.cell import Cell
from lra_bench.grid.plan import plan
from lra_bench.runtime.subprocesses import PARENT
from tests.support.command import Folder


class Fork:
    """A running cell: its process number, and its exit code once it has ended."""

    def __init__(self, server: subprocess.Popen[str], process: int) -> None:
        self._server, self.process = server, process

    def kill(self) -> None:
        os.kill(self.process, signal.SIGKILL)

    def alive(self) -> bool:
        return "Z" not in Path(f"/proc/{self.process}/stat").read_text().rpartition(")")[2].split()[0]

    def wait(self) -> int:
        assert self._server.stdin is not None and self._server.stdout is not None
        self._server.stdin.write("seen\n")
        self._server.stdin.flush()
        return int(self._server.stdout.readline())


class Forks:
    """Starts cells, one after the other."""

    def __init__(self, server: subprocess.Popen[str], output: Path) -> None:
        self._server, self.output = server, output

    def start(self, cell: Cell, folder: Folder, attempt: int = 1, anew: bool = False) -> Fork:
        variables = {name: folder.environment[name] for name in ("LRA_BENCH_RESULTS", "LRA_BENCH_CACHE")}
        request = {"cell": cell.as_json(), "results": str(folder.results), "attempt": attempt, "anew": anew}
        assert self._server.stdin is not None and self._server.stdout is not None
        place = {"stages": None, "cores": None, "variables": variables, "folder": str(folder.root)}
        self._server.stdin.write(json.dumps({**request, **place}) + "\n")
        self._server.stdin.flush()
        return Fork(self._server, int(self._server.stdout.readline()))

    def run(self, cell: Cell, folder: Folder, attempt: int = 1, anew: bool = False) -> int:
        return self.start(cell, folder, attempt, anew).wait()


@contextmanager
def forks(folder: Path) -> Iterator[Forks]:
    """A server of forks, whose words go to a file in ``folder``; it ends with the context."""
    output = folder / "said.txt"
    with output.open("w") as stream:
        server = subprocess.Popen(
            [sys.executable, "-m", "tests.faults.forks"],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=stream,
            text=True,
            cwd=Path(__file__).parents[2],
        )
        try:
            yield Forks(server, output)
        finally:
            assert server.stdin is not None and server.stdout is not None
            server.stdin.close()
            server.wait()
            server.stdout.close()


def planned(overrides: Sequence[str], folder: Folder, config_dir: Path | None = None) -> list[Cell]:
    """The cells that overrides name."""
    return [each.cell for each in plan(overrides, folder.results, config_dir)]


def main() -> None:
    import datasets
    import pyarrow.parquet

    from lra_bench.cells import run as cell
    from lra_bench.cells import stages
    from lra_bench.records import environment

    assert datasets and pyarrow.parquet and stages and environment
    os.environ[PARENT] = str(os.getpid())
    answers = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)
    while line := sys.stdin.readline():
        process = os.fork()
        if not process:
            request = json.loads(line)
            os.environ.update(request["variables"])
            os.chdir(request["folder"])
            sys.path.insert(0, json.loads(request["cell"])["config_dir"] or "")
            sys.stdin = io.StringIO(line)
            try:
                code = cell.main()
            finally:
                sys.stderr.flush()
            os._exit(code)
        print(process, file=answers, flush=True)
        os.waitid(os.P_PID, process, os.WEXITED | os.WNOWAIT)
        # Its number stays taken until its end has been seen, so that no other process is killed in its place.
        sys.stdin.readline()
        _, status = os.waitpid(process, 0)
        print(os.waitstatus_to_exitcode(status), file=answers, flush=True)


if __name__ == "__main__":
    main()
