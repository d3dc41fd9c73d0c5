"""Start training processes through torchrun, receive their messages, stop them, and interpret how they ended."""

from __future__ import annotations

import json
import os
import signal
import socket
import subprocess
import tempfile
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import IO, Any

from lra_bench.config.schema import CellConfig
from lra_bench.config.serialization import as_dict
from lra_bench.contracts import Unwritable, UserError
from lra_bench.runtime.files import temporary_folder, why
from lra_bench.runtime.hardware import Hardware
from lra_bench.runtime.signals import deferred
from lra_bench.runtime.subprocesses import memory_kills, start, status_of_exit

from .checkpoint import Checkpoints
from .loop import Fit
from .meter import Diverged

LAST_SECONDS = 45.0
"""Seconds before torchrun is killed after it was terminated; it kills ranks itself after 30 s.

Ranks use this time to write a checkpoint.
"""


class GroupFailed(Exception):
    """Raised when a rank failed; the message names the rank and the reason.

    ``status`` is the status of the record, ``last_lines`` the end of the rank's traceback.
    """

    def __init__(self, reason: str, status: str = "failed", last_lines: Iterable[str] = ()) -> None:
        super().__init__(reason)
        self.status, self.last_lines = status, tuple(last_lines)


@dataclass
class GroupResult:
    """Final messages of the ranks, and exit codes of the failed ranks.

    ``ends`` maps ranks to their final messages and ``failures`` ranks to exit codes, both in the order of events.
    ``kills_before`` is the number of processes that the kernel had killed for lack of memory before the group started,
    ``agent_code`` the exit code of torchrun.
    """

    ends: dict[int, dict[str, Any]] = field(default_factory=dict)
    failures: dict[int, int] = field(default_factory=dict)
    kills_before: int | None = None
    agent_code: int | None = None

    def finished(self, processes: int) -> bool:
        """Return whether every rank reported success; a rank that crashes afterwards, during shutdown, still counts."""
        return len(self.ends) == processes and all(end["status"] == "ok" for end in self.ends.values())

    def error(self) -> BaseException:
        """Return the exception that describes why the group did not finish.

        A rank that exited without a message takes precedence, because the errors of the other ranks are then
        consequences. Otherwise the first reported error is used.
        """
        silent = [rank for rank in self.failures if rank not in self.ends]
        if silent:
            status, how = status_of_exit(self.failures[silent[0]], self.kills_before)
            return GroupFailed(f"rank {silent[0]} {how}", status)
        if not self.failures and self.agent_code is not None and self.agent_code < 0:
            # torchrun reports failures before it exits, unless it is killed.
            status, how = status_of_exit(self.agent_code, self.kills_before)
            return GroupFailed(f"torchrun {how}", status)
        rank, end = next(((r, e) for r, e in self.ends.items() if e["status"] != "ok"), (0, {"status": "lost"}))
        status, reason = end["status"], end.get("reason", "")
        if status == "mistake":
            return UserError(reason)
        if status == "unwritable":
            return Unwritable(reason)
        if status == "diverged":
            return Diverged(reason)
        if status == "interrupted":
            return KeyboardInterrupt()
        if status == "out_of_memory":
            return MemoryError(f"rank {rank}: {reason}")
        text = f"rank {rank}: {reason}" if reason else "torchrun ended without a report from the ranks"
        return GroupFailed(text, last_lines=end.get("last_lines", ()))


def train_in_group(
    config: CellConfig,
    hardware: Hardware,
    checkpoints: Checkpoints,
    log: Callable[[int, dict[str, float]], None],
    floor: float | None = None,
    pretraining: bool = False,
) -> tuple[Fit, list[dict[str, int | None]]]:
    """Train a cell with ``hardware.processes`` ranks; return the result of training and the peak memory of each rank.

    Weights are written to the folder of ``checkpoints``; ``log(step, values)`` is called after every evaluation.
    ``floor`` is the score of the strongest floor on the evaluated rows. With ``pretraining`` only the pretraining of
    the cell is run; otherwise it has ended before. On Ctrl-C and SIGTERM, ranks finish their step and write a
    checkpoint.

    Raises the equivalent of a rank's exception (``UserError``, ``Unwritable``, ``Diverged``, ``MemoryError``,
    ``KeyboardInterrupt``) or ``GroupFailed``. All ranks have ended then.
    """
    request = {
        "config": as_dict(config),
        "folder": str(checkpoints.folder),
        "cell": checkpoints.cell,
        "floor": floor,
        "pretraining": pretraining,
    }
    kills = memory_kills()
    with running("lra_bench.training.rank", request, hardware) as agent:
        assert agent.stdout is not None
        result = listen(agent.stdout, log)
    result.kills_before, result.agent_code = kills, agent.returncode
    if not result.finished(hardware.processes):
        raise result.error()
    ends = [result.ends[rank] for rank in range(hardware.processes)]
    written = checkpoints.of_pretraining() if pretraining else checkpoints
    return Fit(written.last_state(), ends[0]["figures"]), [end["peak"] for end in ends]


@contextmanager
def running(module: str, request: Mapping[str, Any], hardware: Hardware) -> Iterator[subprocess.Popen[str]]:
    """Run a module in ``hardware.processes`` ranks and yield the process of torchrun; ranks share its stdout.

    The argument of the module is the path of a file with the ``request`` as JSON. The processes run in a separate
    session, so that Ctrl-C does not reach them twice. All are terminated when the context exits.
    """
    with _request_file(request) as path:
        agent = start(
            # --standalone uses a free port for the rendezvous.
            *("lra_bench.training.agent", "--standalone", "--nnodes=1", "--max-restarts=0"),
            *(f"--nproc-per-node={hardware.processes}", "--local-addr=localhost"),
            *("--log-dir", str(path.parent), "-m", module, str(path)),
            variables=_variables(hardware),
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            text=True,
            encoding="utf-8",
            start_new_session=True,
        )
        assert agent.stdout is not None
        try:
            yield agent
            with suppress(subprocess.TimeoutExpired):
                agent.wait(LAST_SECONDS)
        finally:
            agent.terminate()
            with suppress(subprocess.TimeoutExpired):
                agent.wait(LAST_SECONDS)
            agent.kill()
            agent.wait()
            agent.stdout.close()


@contextmanager
def _request_file(request: Mapping[str, Any]) -> Iterator[Path]:
    """Write a request as JSON to a temporary folder and yield the path of the file.

    Raises ``Unwritable`` if the folder cannot be written.
    """
    with ExitStack() as stack:
        try:
            path = stack.enter_context(temporary_folder()) / "request.json"
            path.write_text(json.dumps(request), encoding="utf-8")
        except OSError as error:
            place = f"TMPDIR: {tempfile.gettempdir()}"
            raise Unwritable(f"{place} {why(error)}; free space there or set TMPDIR to another folder") from error
        yield path


def listen(lines: IO[str], log: Callable[[int, dict[str, float]], None]) -> GroupResult:
    """Read the messages of the group until it ends, and pass evaluations to ``log``.

    After a first interrupt all ranks stop at the end of their step; a second one takes effect immediately. Either
    raises ``KeyboardInterrupt``.
    """
    result, process = GroupResult(), 0

    def stop(number: int = signal.SIGTERM) -> None:
        if process:
            with suppress(ProcessLookupError):
                os.kill(process, signal.SIGTERM)

    with deferred(stop) as interrupted:
        for message in _messages(lines):
            if "process" in message:
                process = message["process"]
                if interrupted():
                    stop()
            elif "values" in message:
                log(message["step"], message["values"])
            elif "status" in message:
                result.ends.setdefault(message["rank"], message)
            elif "failures" in message:
                result.failures = {int(rank): code for rank, code in message["failures"].items()}
                break
    if interrupted():
        raise KeyboardInterrupt
    return result


def _messages(lines: Iterable[str]) -> Iterator[dict[str, Any]]:
    """Yield the lines that are JSON objects; other output of the processes is ignored."""
    for line in lines:
        with suppress(ValueError):
            message = json.loads(line)
            if isinstance(message, dict):
                yield message


def _variables(hardware: Hardware) -> dict[str, str]:
    """Return environment variables of the ranks; the user's values take precedence."""
    # DDP warns if find_unused_parameters finds no unused parameter.
    defaults = {"OMP_NUM_THREADS": str(hardware.threads), "TORCH_CPP_LOG_LEVEL": "ERROR"}
    if "lo" in (name for _, name in socket.if_nameindex()):
        # The host name may resolve to another address; ranks of one machine can use the loopback interface.
        defaults["GLOO_SOCKET_IFNAME"] = "lo"
    return {name: os.environ.get(name, value) for name, value in defaults.items()}
