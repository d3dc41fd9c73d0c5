"""One of the processes that train a cell together: ``python -m lra_bench.training.rank REQUEST``, under torchrun.

Trains and writes checkpoints, no more. What there is to say goes to stdout, a line of JSON each: rank 0's process and
its evaluations, and of every rank how it ended.
"""

from __future__ import annotations

import json
import os
import signal
import sys
import traceback
from collections.abc import Iterator
from contextlib import contextmanager, nullcontext
from dataclasses import replace
from datetime import timedelta
from pathlib import Path
from typing import IO, TYPE_CHECKING, Any

from lra_bench import progress
from lra_bench.contracts import Unwritable, UserError
from lra_bench.runtime.limits import debugging, memory_limit
from lra_bench.runtime.signals import Stopped, raise_once
from lra_bench.runtime.subprocesses import end_with_parent, last_lines, set_kill_preference

if TYPE_CHECKING:
    from lra_bench.runtime.hardware import Hardware

    from .parallel import Group

PATIENCE = timedelta(minutes=30)
"""How long ranks wait for one that lives; torchrun sees at once that one does not."""


@contextmanager
def connected(hardware: Hardware) -> Iterator[tuple[Group, Hardware]]:
    """The group, as torchrun's environment variables tell of it, and the hardware that is this process's own.

    The group is left in order where the context ends without an exception, which must be so on all ranks.
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
    # What is agreed upon on the host must not wait for a device.
    dist.init_process_group("cpu:gloo,cuda:nccl" if cuda else "gloo", timeout=PATIENCE)
    yield Group(rank, world, connected=True, sharded=hardware.strategy == "fsdp"), hardware
    dist.barrier()
    dist.destroy_process_group()


class StatusPipe:
    """What a rank tells the process that started the group: lines of JSON on what was its stdout."""

    def __init__(self, rank: int) -> None:
        self.rank = rank
        self._stream: IO[str] = os.fdopen(os.dup(1), "w", encoding="utf-8")
        # What else is printed, by models or libraries, is for people.
        os.dup2(2, 1)

    def report(self, **what: Any) -> None:
        """Say it in one write, so that lines of ranks do not mix."""
        self._stream.write(json.dumps({"rank": self.rank, **what}) + "\n")
        self._stream.flush()


def work(request: dict[str, Any], pipe: StatusPipe) -> None:
    """Train the requested cell as one rank of the group and tell how it ended; exceptions that are its own pass."""
    from lra_bench.config.objects import build_model, build_task
    from lra_bench.config.serialization import from_dict
    from lra_bench.data.batches import Rows
    from lra_bench.data.cache import Cache
    from lra_bench.runtime.hardware import resolve
    from lra_bench.runtime.memory import peak_memory

    from .checkpoint import Checkpoints, writer
    from .loop import train
    from .meter import Diverged

    config = from_dict(request["config"])
    with connected(resolve(config.hardware)) as (group, hardware):
        task = build_task(config)
        task.prepare(Cache())
        rows = {name: Rows(task.split(name), task.spec) for name in ("train", "validation")}
        model = hardware.place(build_model(config, task.spec))
        folder, options = Path(request["folder"]), config.hardware
        checkpoints = Checkpoints(folder, options.checkpoint_seconds, group)

        def log(step: int, values: dict[str, float]) -> None:
            if group.first:
                pipe.report(step=step, values=values)

        limit = memory_limit(options.memory_limit_gigabytes, hardware.device)
        try:
            with writer(folder) if group.first else nullcontext(), limit, peak_memory(hardware.device) as peak:
                fit = train(model, rows, task.spec, config, hardware, checkpoints, log, group)
            pipe.report(status="ok", figures=fit.figures, peak=peak.as_dict())
        except Diverged as error:
            # Every rank has seen the same loss.
            pipe.report(status="diverged", reason=str(error))
        except Stopped:
            pipe.report(status="interrupted", reason="")


def main() -> None:
    """Be one rank. Where this rank alone ends badly, the others are not waited for: torchrun ends them."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    raise_once(signal.SIGTERM)
    # Where torchrun is killed nobody watches the ranks, and one may wait for its store without hearing SIGTERM.
    end_with_parent(signal.SIGKILL)
    set_kill_preference(600)
    pipe = StatusPipe(int(os.environ["RANK"]))
    if pipe.rank:
        progress.silence()
    else:
        pipe.report(process=os.getpid())
    try:
        work(json.loads(Path(sys.argv[1]).read_text(encoding="utf-8")), pipe)
    except BaseException as error:
        # torchrun ends all ranks when one has died; this one still has to tell what it knows.
        signal.signal(signal.SIGTERM, signal.SIG_IGN)
        pipe.report(**_ending(error))
        sys.stderr.flush()
        # Leaving the group would wait for ranks that do not come.
        os._exit(1)
    sys.stderr.flush()
    # The group is left. What threads of gloo do while Python takes itself down may abort the process.
    os._exit(0)


def _ending(error: BaseException) -> dict[str, Any]:
    """Status, reason and last lines of a rank that ended alone."""
    from lra_bench.records.status import status_of

    if isinstance(error, Unwritable):
        return {"status": "unwritable", "reason": str(error)}
    if isinstance(error, UserError):
        return {"status": "mistake", "reason": str(error)}
    if not isinstance(error, Exception):
        return {"status": "interrupted", "reason": type(error).__name__}
    if debugging():
        traceback.print_exception(error)
    status, reason = status_of(error)
    return {"status": status, "reason": reason, "last_lines": last_lines(error)}


if __name__ == "__main__":
    main()
