"""Training by several processes: started through torchrun, listened to, stopped, and their end understood."""

from __future__ import annotations

import json
import os
import signal
import socket
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import IO, Any

from lra_bench.config.schema import CellConfig
from lra_bench.config.serialization import as_dict
from lra_bench.contracts import Unwritable, UserError
from lra_bench.runtime.hardware import Hardware
from lra_bench.runtime.signals import deferred
from lra_bench.runtime.subprocesses import environment, memory_kills, status_of_exit

from .checkpoint import Checkpoints
from .loop import Fit
from .meter import Diverged

LAST_SECONDS = 45.0
"""How long ranks have to write a checkpoint when the group is ended; torchrun kills them after 30."""


class GroupFailed(Exception):
    """A rank died or met an error; the message says which. With the status of the record and the rank's last lines."""

    def __init__(self, reason: str, status: str = "failed", last_lines: Iterable[str] = ()) -> None:
        super().__init__(reason)
        self.status, self.last_lines = status, tuple(last_lines)


@dataclass
class GroupResult:
    """How each rank says it ended, and the exit codes of those that failed, both in the order of events.

    ``kills_before`` is how many processes the kernel had killed for memory when the group was started, ``agent_code``
    the exit code of torchrun.
    """

    ends: dict[int, dict[str, Any]] = field(default_factory=dict)
    failures: dict[int, int] = field(default_factory=dict)
    kills_before: int | None = None
    agent_code: int | None = None

    def finished(self, processes: int) -> bool:
        """Whether every rank ended well; one that crashes afterwards, on its way out, has lost nothing."""
        return len(self.ends) == processes and all(end["status"] == "ok" for end in self.ends.values())

    def error(self) -> BaseException:
        """The exception that the group's end amounts to.

        A rank that died without a word drags others down, which then speak of it; so it is named first. Else whoever
        spoke first knows best.
        """
        silent = [rank for rank in self.failures if rank not in self.ends]
        if silent:
            status, how = status_of_exit(self.failures[silent[0]], self.kills_before)
            return GroupFailed(f"rank {silent[0]} {how}", status)
        if not self.failures and self.agent_code is not None and self.agent_code < 0:
            # It tells of failures before it ends, unless it is killed.
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
        told = f"rank {rank}: {reason}" if reason else "torchrun ended without a word from the ranks"
        return GroupFailed(told, last_lines=end.get("last_lines", ()))


def train_in_group(
    config: CellConfig,
    hardware: Hardware,
    checkpoints: Checkpoints,
    log: Callable[[int, dict[str, float]], None],
) -> tuple[Fit, list[dict[str, int | None]]]:
    """Train a cell by ``hardware.processes`` ranks: what training leaves, and the peak memory of each rank.

    Weights lie in the folder of ``checkpoints``. Ctrl-C and SIGTERM let ranks end their step and write a checkpoint.
    Raises what a rank raised, and ``GroupFailed`` where one died; none is left then.
    """
    request = {"config": as_dict(config), "folder": str(checkpoints.folder)}
    kills = memory_kills()
    with running("lra_bench.training.rank", request, hardware) as agent:
        assert agent.stdout is not None
        result = listen(agent.stdout, log)
    result.kills_before, result.agent_code = kills, agent.returncode
    if not result.finished(hardware.processes):
        raise result.error()
    ends = [result.ends[rank] for rank in range(hardware.processes)]
    return Fit(checkpoints.last_state(), ends[0]["figures"]), [end["peak"] for end in ends]


@contextmanager
def running(module: str, request: Mapping[str, Any], hardware: Hardware) -> Iterator[subprocess.Popen[str]]:
    """Run a module in ``hardware.processes`` ranks, told the path of the ``request``; yields torchrun, whose stdout is
    theirs.

    They share no terminal with this process, so that Ctrl-C does not reach them twice. All are ended with the context.
    """
    with tempfile.TemporaryDirectory(prefix="lra-bench-") as folder:
        told = Path(folder, "request.json")
        told.write_text(json.dumps(request), encoding="utf-8")
        with _agent(["--log-dir", folder, "-m", module, str(told)], hardware) as agent:
            yield agent


@contextmanager
def _agent(program: Iterable[str], hardware: Hardware) -> Iterator[subprocess.Popen[str]]:
    agent = subprocess.Popen(
        # With --standalone the group meets on a port that is free.
        [
            *(sys.executable, "-m", "lra_bench.training.agent", "--standalone", "--nnodes=1", "--max-restarts=0"),
            *(f"--nproc-per-node={hardware.processes}", "--local-addr=localhost", *program),
        ],
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        env={**environment(), **_variables(hardware)},
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


def listen(lines: IO[str], log: Callable[[int, dict[str, float]], None]) -> GroupResult:
    """Hear the group to its end, handing evaluations on to ``log``.

    The first interrupt stops rank 0 after its step, and the others with it; a second acts at once. Both become
    ``KeyboardInterrupt``.
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
    """The lines that are ours; what else a process of the group prints there is nobody's."""
    for line in lines:
        with suppress(ValueError):
            message = json.loads(line)
            if isinstance(message, dict):
                yield message


def _variables(hardware: Hardware) -> dict[str, str]:
    """Environment variables of the ranks, where the user has not set them."""
    # torch warns of each model in which DDP finds every parameter used.
    wanted = {"OMP_NUM_THREADS": str(hardware.threads), "TORCH_CPP_LOG_LEVEL": "ERROR"}
    if "lo" in (name for _, name in socket.if_nameindex()):
        # Ranks of one machine need not find each other by its name, which may lead elsewhere.
        wanted["GLOO_SOCKET_IFNAME"] = "lo"
    return {name: os.environ.get(name, value) for name, value in wanted.items()}
