"""Run cells and ``lra-bench`` commands in forks of a process that has imported all modules, without start-up time.

``python -m tests.support.forks`` reads one request per line and writes the process id of the fork. After a further line
and the end of the fork it writes the exit code.
"""

from __future__ import annotations

import ctypes
import gc
import io
import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from importlib import import_module
from pathlib import Path
from types import SimpleNamespace
from typing import Any

from lra_bench.cells.cell import Cell
from lra_bench.grid.plan import plan
from lra_bench.runtime.subprocesses import PARENT
from tests.support.command import TINY, Folder

ROOT = Path(__file__).parents[2]
MODULES = [
    *("datasets", "numba", "psutil", "pyarrow.parquet", "rich.table", "safetensors.torch", "scipy.linalg"),
    *("scipy.special", "torch._dynamo", "lra_bench.cells.stages", "lra_bench.models", "lra_bench.records.environment"),
]
"""Modules that cells and commands import lazily."""
COLLEAGUE = {"user": 54321, "group": 777}
"""User ID without an entry in /etc/passwd, and ID of a group with access to shared folders."""


class Fork:
    """A running fork, with its process id and its exit code."""

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


class ForkedCommand:
    """A running ``lra-bench`` command, with the methods of ``subprocess.Popen`` that the tests use."""

    def __init__(self, fork: Fork, output: Path, errors: Path) -> None:
        self._fork, self._output, self._errors = fork, output, errors
        self.pid = fork.process
        self.returncode: int | None = None

    def poll(self) -> int | None:
        if self.returncode is None and not self._fork.alive():
            self.returncode = self._fork.wait()
        return self.returncode

    def kill(self) -> None:
        if self.poll() is None:
            self._fork.kill()

    def communicate(self, timeout: float = 300) -> tuple[str, str]:
        """Wait for the end and return stdout and stderr; if they are one stream, the second is empty."""
        deadline = time.monotonic() + timeout
        while self.poll() is None:
            if time.monotonic() > deadline:
                self.kill()
                raise subprocess.TimeoutExpired("lra-bench", timeout, self._output.read_text())
            time.sleep(0.01)
        return self._output.read_text(), "" if self._errors == self._output else self._errors.read_text()


class Forks:
    """Starts cells and commands sequentially."""

    def __init__(self, server: subprocess.Popen[str], output: Path) -> None:
        self._server, self.output, self._commands = server, output, 0

    def _start(self, request: dict[str, Any]) -> Fork:
        assert self._server.stdin is not None and self._server.stdout is not None
        self._server.stdin.write(json.dumps(request) + "\n")
        self._server.stdin.flush()
        return Fork(self._server, int(self._server.stdout.readline()))

    def start(self, cell: Cell, folder: Folder, attempt: int = 1, restart: bool = False) -> Fork:
        """Start the process of a cell, without the command that usually starts it."""
        variables = {name: folder.environment[name] for name in ("LRA_BENCH_RESULTS", "LRA_BENCH_CACHE")}
        request = {"cell": cell.as_json(), "results": str(folder.results), "attempt": attempt, "restart": restart}
        settings = {"stages": None, "cores": None, "variables": variables, "folder": str(folder.root)}
        return self._start({**request, **settings})

    def run(self, cell: Cell, folder: Folder, attempt: int = 1, restart: bool = False) -> int:
        return self.start(cell, folder, attempt, restart).wait()

    def start_command(
        self,
        folder: Folder,
        *arguments: str,
        grace: float | None = None,
        together: bool = True,
        colleague: bool = False,
    ) -> ForkedCommand:
        """Start ``lra-bench`` in a new session; the cells that it runs are forks of it.

        Args:
            folder: The working folder.
            *arguments: Arguments of the command.
            grace: Replacement of ``GRACE_SECONDS``.
            together: Whether stderr is written to the same file as stdout.
            colleague: Whether another user of the group runs it (Linux, as root).

        Returns:
            The running command.
        """
        self._commands += 1
        output = self.output.with_name(f"command{self._commands}.out")
        errors = output if together else output.with_suffix(".err")
        for path in (output, errors):  # the command may be killed before it opens them
            path.touch()
        settings = {"variables": folder.environment, "folder": str(folder.root), "grace": grace, "colleague": colleague}
        return ForkedCommand(
            self._start({"arguments": arguments, "output": str(output), "errors": str(errors), **settings}),
            output,
            errors,
        )

    def command(
        self,
        folder: Folder,
        *arguments: str,
        check: bool = True,
        grace: float | None = None,
        timeout: float = 300,
        colleague: bool = False,
    ) -> subprocess.CompletedProcess[str]:
        """Run ``lra-bench`` like ``Folder.run``, but in a fork."""
        process = self.start_command(folder, *arguments, grace=grace, together=False, colleague=colleague)
        output, errors = process.communicate(timeout)
        if check and process.returncode:
            raise AssertionError(f"lra-bench {' '.join(arguments)}: code {process.returncode}\n{output}{errors}")
        return subprocess.CompletedProcess(arguments, process.returncode or 0, output, errors)


@contextmanager
def fork_server(folder: Path) -> Iterator[Forks]:
    """Start a fork server, which ends with the context; its stderr is written to a file in ``folder``."""
    output = folder / "stderr.txt"
    with output.open("w") as stream:
        server = subprocess.Popen(
            [sys.executable, "-m", "tests.support.forks"],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=stream,
            text=True,
            cwd=ROOT,
        )
        try:
            yield Forks(server, output)
        finally:
            assert server.stdin is not None and server.stdout is not None
            server.stdin.close()
            server.wait()
            server.stdout.close()


def planned(overrides: Sequence[str], folder: Folder, config_dir: Path | None = None) -> list[Cell]:
    """Return the cells that ``overrides`` select."""
    return [each.cell for each in plan(overrides, folder.results, config_dir)]


def run_cell(request: dict[str, Any]) -> int:
    from lra_bench.cells import run

    os.environ.update(request["variables"])
    os.chdir(request["folder"])
    sys.path.insert(0, json.loads(request["cell"])["config_dir"] or "")
    sys.stdin = io.StringIO(json.dumps(request))
    return run.main()


def run_command(request: dict[str, Any]) -> int:
    from lra_bench.cells import subprocess as cells
    from lra_bench.cli import main
    from lra_bench.runtime import subprocesses

    os.setsid()
    for descriptor, name in ((1, "output"), (2, "errors")):
        os.dup2(os.open(request[name], os.O_WRONLY | os.O_CREAT | os.O_APPEND), descriptor)
    os.environ.clear()
    os.environ.update(request["variables"])
    os.chdir(request["folder"])
    sys.path.insert(0, request["folder"])
    sys.argv = ["lra-bench", *request["arguments"]]
    subprocesses.subprocess = SimpleNamespace(Popen=fork_cell, PIPE=subprocess.PIPE)  # type: ignore[assignment]
    if request["grace"] is not None:
        cells.GRACE_SECONDS = request["grace"]
    os.umask(0o002)  # files are writable for the group, as docs/faults.md requires for shared folders
    if request["colleague"]:
        become_colleague()
    return exit_code(main.main)


def become_colleague() -> None:
    """Switch to ``COLLEAGUE``, keeping only the capability to read all files, such as those of the interpreter."""
    keep_capabilities, version, may_read_and_search = 8, 0x20080522, 1 << 2  # linux/prctl.h, linux/capability.h
    system = ctypes.CDLL(None, use_errno=True)
    system.prctl(keep_capabilities, 1)
    os.setgroups([])
    os.setgid(COLLEAGUE["group"])
    os.setuid(COLLEAGUE["user"])
    kept = (ctypes.c_uint32 * 6)(may_read_and_search, may_read_and_search)
    assert system.capset((ctypes.c_uint32 * 2)(version, 0), kept) == 0, os.strerror(ctypes.get_errno())


def fork_cell(arguments: Sequence[str], *, env: dict[str, str], pass_fds: Sequence[int] = (), **options: Any):
    """Replace ``subprocess.Popen`` for ``python -m lra_bench.cells.run`` by a fork without exec."""
    from lra_bench.cells import run

    if arguments[1:] != ["-m", "lra_bench.cells.run"]:  # a process that the cell starts
        return subprocess.Popen(arguments, env=env, **options)

    def run_in_fork() -> None:
        code = 1
        try:
            gc.enable()  # subprocess has disabled it
            for descriptor in range(3, 256):
                if descriptor not in pass_fds:
                    with suppress(OSError):
                        os.close(descriptor)
            signal.signal(signal.SIGTERM, signal.SIG_DFL)
            os.environ.clear()
            os.environ.update(env)
            sys.path[:] = env["PYTHONPATH"].split(os.pathsep)
            sys.stdin = os.fdopen(os.dup(0))
            code = exit_code(run.main)
        finally:
            sys.stdout.flush()
            os._exit(code)

    return subprocess.Popen(
        arguments, env=env, pass_fds=pass_fds, preexec_fn=run_in_fork, restore_signals=False, **options
    )


def exit_code(run) -> int:
    """Run a function and return the exit code of a process that ends with this call."""
    try:
        return run() or 0
    except SystemExit as error:
        return error.code if isinstance(error.code, int) else 0 if error.code is None else 1


def main() -> None:
    from lra_bench.cli import main as cli

    for module in MODULES:
        import_module(module)
    os.environ[PARENT] = str(os.getpid())
    responses = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)
    # These calls import further modules, so that no fork has to.
    plan([*TINY, "model=bag_of_tokens"], Path("no-results"))
    cli.app(args=["list", "tasks"], standalone_mode=False)
    sys.stdout.flush()
    gc.collect()
    gc.freeze()  # a collection in a fork would copy the memory of all objects
    while line := sys.stdin.readline():
        process = os.fork()
        if not process:
            code = 1
            request = json.loads(line)
            try:
                code = run_cell(request) if "cell" in request else run_command(request)
            finally:
                sys.stdout.flush()
                sys.stderr.flush()
                os._exit(code)
        print(process, file=responses, flush=True)
        os.waitid(os.P_PID, process, os.WEXITED | os.WNOWAIT)
        # The process id is not released before the client has noticed the end, so that no other process gets it and is
        # killed instead.
        sys.stdin.readline()
        _, status = os.waitpid(process, 0)
        print(os.waitstatus_to_exitcode(status), file=responses, flush=True)


if __name__ == "__main__":
    main()
