"""One of the processes that train a cell together: ``python -m lra_bench.training.rank`` with a request on stdin.

``ranks.py`` starts it. It reports on stdout, one JSON object per line: rank 0 its evaluations, every rank its status.
"""

from __future__ import annotations

import json
import os
import signal
import sys
import traceback
from collections.abc import Callable, Iterator
from contextlib import contextmanager, nullcontext
from dataclasses import replace
from datetime import timedelta
from pathlib import Path
from typing import TYPE_CHECKING, Any

from lra_bench import progress
from lra_bench.contracts import Unwritable, UserError
from lra_bench.runtime.limits import debugging, memory_limit
from lra_bench.runtime.signals import Stopped, raise_once
from lra_bench.runtime.subprocesses import last_lines, prepare_child

if TYPE_CHECKING:
    from lra_bench.runtime.hardware import Hardware

    from .parallel import Group

GROUP_TIMEOUT = timedelta(minutes=30)
"""Timeout of collective operations if a rank is alive but does not answer; dead ranks are detected immediately."""


@contextmanager
def connected(hardware: Hardware) -> Iterator[tuple[Group, Hardware]]:
    """Join the process group of ``ranks.running``; yield it and this process's hardware.

    The process group is destroyed if the context exits without an exception; it must then do so on all ranks.
    """
    import torch
    import torch.distributed as dist

    from .parallel import Group

    rank, world = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])
    cuda = hardware.device.type == "cuda"
    if cuda:
        hardware = replace(hardware, device=torch.device("cuda", int(os.environ["LOCAL_RANK"])))
        torch.cuda.set_device(hardware.device)
    hardware.apply()
    # gloo for tensors on the host, so that these operations do not synchronise with the device.
    backend = "cpu:gloo,cuda:nccl" if cuda else "gloo"
    store = dist.TCPStore("localhost", int(os.environ["MASTER_PORT"]))  # type: ignore[attr-defined]
    dist.init_process_group(backend, timeout=GROUP_TIMEOUT, store=store, rank=rank, world_size=world)
    yield Group(rank, world, connected=True, sharded=hardware.strategy == "fsdp"), hardware
    dist.barrier()
    dist.destroy_process_group()


def reporter(rank: int) -> Callable[..., None]:
    """Return a function that sends a JSON line with its arguments to the process that started the group.

    The line is written to the original stdout in a single write, so that lines of several ranks do not mix. Other
    output, of models or libraries, is redirected to stderr.
    """
    stream = os.fdopen(os.dup(1), "w", encoding="utf-8")
    os.dup2(2, 1)

    def report(**message: Any) -> None:
        stream.write(json.dumps({"rank": rank, **message}) + "\n")
        stream.flush()

    return report


def work(request: dict[str, Any], report: Callable[..., None]) -> None:
    """Train the requested cell as one rank of the group and report the status.

    Exceptions other than ``Diverged`` and ``Stopped`` are raised.
    """
    from lra_bench.config.objects import build_model, build_task
    from lra_bench.config.pretraining import pretrains
    from lra_bench.config.serialization import from_dict
    from lra_bench.data.batches import Rows
    from lra_bench.data.cache import Cache
    from lra_bench.runtime.hardware import resolve
    from lra_bench.runtime.memory import peak_memory

    from .checkpoint import Checkpoints, writer
    from .loop import train
    from .meter import Diverged
    from .pretraining import load_pretrained, pretrain
    from .sampling import training_rows

    config = from_dict(request["config"])
    with connected(resolve(config.hardware)) as (group, hardware):
        task = build_task(config)
        task.prepare(Cache())
        rows = {**training_rows(task, config.train), "validation": Rows(task.split("validation"), task.spec)}
        model = hardware.place(build_model(config, task.spec))
        folder, options = Path(request["folder"]), config.hardware
        checkpoints = Checkpoints(folder, options.checkpoint_seconds, group, request["cell"])

        def log(step: int, values: dict[str, float]) -> None:
            if group.first:
                report(step=step, values=values)

        limit = memory_limit(options.memory_limit_gigabytes, hardware.device)
        try:
            with writer(folder) if group.first else nullcontext(), limit, peak_memory(hardware.device) as peak:
                if request["pretraining"]:
                    fit = pretrain(model, rows, task.spec, config, hardware, checkpoints, group)
                else:
                    if pretrains(config):
                        load_pretrained(model, task.spec, config, checkpoints)
                    fit = train(model, rows, task.spec, config, hardware, checkpoints, log, group, request["floor"])
            report(status="ok", figures=fit.figures, peak=peak.as_dict())
        except Diverged as error:
            # The loss is the same on every rank.
            report(status="diverged", reason=str(error))
        except Stopped:
            report(status="interrupted", reason="")


def main() -> None:
    """Run one rank. If only this rank fails, it exits without waiting for the others; its parent terminates them."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    raise_once(signal.SIGTERM)
    # If the parent is killed, no process monitors the ranks, and a rank that waits for the store ignores SIGTERM.
    prepare_child(signal.SIGKILL, 600)
    report = reporter(rank := int(os.environ["RANK"]))
    if rank:
        progress.silence()
    try:
        work(json.load(sys.stdin), report)
    except BaseException as error:
        # All ranks are terminated when one has failed; this rank must still report its error.
        signal.signal(signal.SIGTERM, signal.SIG_IGN)
        report(**_ending(error))
        sys.stderr.flush()
        # Destroying the process group would wait for other ranks.
        os._exit(1)
    sys.stderr.flush()
    # Skip the shutdown of the interpreter, during which threads of gloo can abort the process.
    os._exit(0)


def _ending(error: BaseException) -> dict[str, Any]:
    """Return status, reason and last lines of the traceback for a rank that failed with ``error``."""
    from lra_bench.records.status import status_of

    if isinstance(error, UserError):
        return {"status": "unwritable" if isinstance(error, Unwritable) else "mistake", "reason": str(error)}
    if not isinstance(error, Exception):
        return {"status": "interrupted", "reason": type(error).__name__}
    if debugging():
        traceback.print_exception(error)
    status, reason = status_of(error)
    return {"status": status, "reason": reason, "last_lines": last_lines(error)}


if __name__ == "__main__":
    main()
