"""Start the processes that train a cell together, receive their messages, stop them, and interpret how they ended."""

from __future__ import annotations

import json
import os
import select
import signal
import socket
import subprocess
import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from typing import Any

from torch.distributed import TCPStore  # type: ignore[attr-defined]

from lra_bench.config.schema import CellConfig
from lra_bench.config.serialization import as_dict
from lra_bench.contracts import Unwritable, UserError
from lra_bench.runtime.hardware import Hardware
from lra_bench.runtime.signals import deferred
from lra_bench.runtime.subprocesses import memory_kills, start, status_of_exit

from .checkpoint import Checkpoints
from .loop import Fit
from .meter import Diverged

POLL_SECONDS = 0.1
LAST_SECONDS = 30.0
"""Seconds before a rank is killed after it was terminated, in which it can write a checkpoint."""


class GroupFailed(Exception):
    """Raised when a rank failed; the message names the rank and the reason.

    ``status`` is the status of the record, ``last_lines`` the end of the rank's traceback.
    """

    def __init__(self, reason: str, status: str = "failed", last_lines: Iterable[str] = ()) -> None:
        super().__init__(reason)
        self.status, self.last_lines = status, tuple(last_lines)


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
    with running("lra_bench.training.rank", request, hardware) as ranks:
        ranks.listen(log)
    if not ranks.finished():
        raise ranks.error()
    ends = [ranks.ends[rank] for rank in range(hardware.processes)]
    written = checkpoints.of_pretraining() if pretraining else checkpoints
    return Fit(written.last_state(), ends[0]["figures"]), [end["peak"] for end in ends]


@dataclass
class Ranks:
    """Processes of ranks, in their order, and the descriptor of the pipe on which all of them send JSON lines.

    ``ends`` maps ranks to their final messages, in the order of their arrival, and ``failures`` the ranks that failed
    first to exit codes. ``kills_before`` is the number of processes that the kernel had killed before for lack of
    memory.
    """

    processes: list[subprocess.Popen[bytes]]
    pipe: int
    ends: dict[int, dict[str, Any]] = field(default_factory=dict)
    failures: dict[int, int] = field(default_factory=dict)
    kills_before: int | None = None

    def finished(self) -> bool:
        """Return whether every rank reported success; a rank that crashes afterwards, during shutdown, still counts."""
        return len(self.ends) == len(self.processes) and all(end["status"] == "ok" for end in self.ends.values())

    def error(self) -> BaseException:
        """Return the exception that describes why the group did not finish.

        It is that of a rank that exited without a message, whose consequences other errors are, or else the first one.
        """
        silent = [rank for rank in self.failures if rank not in self.ends]
        if silent:
            status, how = status_of_exit(self.failures[silent[0]], self.kills_before)
            return GroupFailed(f"rank {silent[0]} {how}", status)
        rank, end = next(((r, e) for r, e in self.ends.items() if e["status"] != "ok"), (0, {"status": "lost"}))
        status, reason = end["status"], end.get("reason", "")
        if status in (classes := {"mistake": UserError, "unwritable": Unwritable, "diverged": Diverged}):
            return classes[status](reason)
        if status == "interrupted":
            return KeyboardInterrupt()
        if status == "out_of_memory":
            return MemoryError(f"rank {rank}: {reason}")
        text = f"rank {rank}: {reason}" if reason else "the ranks ended without a report"
        return GroupFailed(text, last_lines=end.get("last_lines", ()))

    def listen(self, log: Callable[[int, dict[str, float]], None]) -> None:
        """Read the messages of the ranks until all have ended, and pass evaluations to ``log``.

        When a rank fails, the others are terminated. After a first interrupt all ranks stop at the end of their step; a
        second one takes effect immediately. Either raises ``KeyboardInterrupt``.
        """
        # Ranks stop together: the first one tells the others.
        with deferred(lambda number: _terminate(self.processes[:1])) as interrupted:
            for line in self._lines():
                with suppress(ValueError):  # not a message
                    message = json.loads(line)
                    if "values" in message:
                        log(message["step"], message["values"])
                    elif "status" in message:
                        self.ends.setdefault(message["rank"], message)
        if interrupted():
            raise KeyboardInterrupt

    def _lines(self) -> Iterator[bytes]:
        """Yield the lines that the ranks send until all have ended; end all ranks when some have failed."""
        buffer, ends_at = b"", float("inf")
        while True:
            codes = {rank: process.poll() for rank, process in enumerate(self.processes)}
            failed = {rank: code for rank, code in codes.items() if code}
            if failed and not self.failures:
                self.failures, ends_at = failed, time.monotonic() + LAST_SECONDS
                _terminate(self.processes)
            if time.monotonic() > ends_at:
                self.kill()
            ready, _, _ = select.select([self.pipe], [], [], POLL_SECONDS)
            if ready:
                *lines, buffer = (buffer + os.read(self.pipe, 1 << 16)).split(b"\n")
                yield from lines
            elif None not in codes.values():
                return

    def kill(self) -> None:
        """Kill all ranks and wait for them."""
        for process in self.processes:
            process.kill()
            process.wait()


def _terminate(processes: Iterable[subprocess.Popen[bytes]]) -> None:
    for process in processes:
        process.send_signal(signal.SIGTERM)  # has no effect if the process has ended


@contextmanager
def running(module: str, request: Mapping[str, Any], hardware: Hardware) -> Iterator[Ranks]:
    """Run a module in ``hardware.processes`` ranks, which receive the ``request`` as JSON on stdin.

    The processes run in separate sessions, so that Ctrl-C does not reach them twice. All have ended when the context
    exits.
    """
    # The ranks exchange their addresses through this store, on a free port.
    store = TCPStore("localhost", 0, is_master=True, wait_for_workers=False)
    pipe, sent = os.pipe()
    ranks = Ranks([], pipe, kills_before=memory_kills())
    try:
        for rank in range(hardware.processes):
            process = start(
                module,
                variables={**_variables(hardware, store.port), "RANK": str(rank), "LOCAL_RANK": str(rank)},
                stdin=subprocess.PIPE,
                stdout=sent,
                start_new_session=True,
            )
            ranks.processes.append(process)
            assert process.stdin is not None
            with suppress(BrokenPipeError), process.stdin:  # the process has already ended
                process.stdin.write(json.dumps(request).encode())
        yield ranks
    finally:
        _terminate(ranks.processes)
        ends_at = time.monotonic() + LAST_SECONDS
        for process in ranks.processes:
            with suppress(subprocess.TimeoutExpired):
                process.wait(max(0.0, ends_at - time.monotonic()))
        ranks.kill()
        os.close(sent)
        os.close(pipe)


def _variables(hardware: Hardware, port: int) -> dict[str, str]:
    """Return environment variables of the ranks; the user's values of the first ones take precedence."""
    # DDP warns if find_unused_parameters finds no unused parameter.
    defaults = {"OMP_NUM_THREADS": str(hardware.threads), "TORCH_CPP_LOG_LEVEL": "ERROR"}
    if "lo" in (name for _, name in socket.if_nameindex()):
        # Use the loopback interface, because the host name may resolve to an address that is not reachable.
        defaults["GLOO_SOCKET_IFNAME"] = "lo"
    chosen = {name: os.environ.get(name, value) for name, value in defaults.items()}
    return {**chosen, "WORLD_SIZE": str(hardware.processes), "MASTER_PORT": str(port)}
