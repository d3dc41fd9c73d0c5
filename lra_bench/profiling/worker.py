"""A process that holds one model and measures it on command: ``python -m lra_bench.profiling.worker``.

Reads a job and then commands from stdin, one JSON object per line, and writes one line per command to stdout. While it
waits for a command it uses no CPU time, so that other workers can be timed.
"""

from __future__ import annotations

import gc
import json
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import suppress
from dataclasses import asdict
from pathlib import Path
from typing import IO, Any

import torch

from lra_bench.config.serialization import from_dict
from lra_bench.records.status import status_of
from lra_bench.runtime.hardware import resolve
from lra_bench.runtime.memory import PeakMemory, hand_back
from lra_bench.runtime.subprocesses import serve

from .attention_backend import forced
from .bench import Bench, flops_per_token, spec_of, step_flops
from .peak_matmul import peak_matmul_flops
from .scaling import peak_bytes
from .sections import FIXED, LARGEST
from .timing import Step, Timing, WarmUp, block, collector_off, first_steps, measure, summary, warm_up

POLL_SECONDS = 0.001
LIMIT_SECONDS = 0.5  # threads of Intel's OpenMP spin for 0.2 s by default
LEAD_SECONDS = 0.03
"""Steps shorter than this are preceded by a step that is not timed."""
LARGEST_SIZE = 1 << 16
LONGEST_STEP_SECONDS = 1.0
"""Limits of the search for the largest batch; with longer steps too few would fit into a timing window."""


class TimedModel:
    """The model of a worker; each public method is a command and returns its answer.

    ``length`` is the current length, ``bench`` the benchmark of the model at that length, ``step`` the step of the
    current mode, ``warm`` its warm-up, and ``rounds`` the seconds of each step by round.
    """

    def __init__(self, job: Mapping[str, Any]) -> None:
        self.job, self.config, self.spec, self.length = job, from_dict(job["config"]), spec_of(job), 0
        self.hardware = resolve(self.config.hardware)
        self.hardware.apply()
        self.first_batch = 1 if job["batch"] == LARGEST else job["batch"]
        self.bench: Bench | None = None
        self.step: Step | None = None
        self.warm = WarmUp(0.0, 0.0)
        self.rounds: list[list[float]] = []

    def build(self, length: int, flops: bool) -> dict[str, Any]:
        """Build the model for a length, in place of a previous one, and count the FLOPs of a row if requested.

        Other workers may do the same at the same time; no model is timed meanwhile.
        """
        self.length, self.bench, self.step = length, None, None
        self._bench(self.first_batch)
        return {"flops": step_flops(self.config, self.spec, length) if flops else {}}

    def count_flops(self, per_token: bool) -> dict[str, Any]:
        """Count the FLOPs of a row by mode and, if ``per_token``, those of the section ``flops`` of the record."""
        steps = step_flops(self.config, self.spec, self.length) if self.bench is not None else {}
        return {"steps": steps, "section": flops_per_token(self.config, self.spec) if per_token else None}

    def peak_matmul_flops(self) -> dict[str, Any]:
        """Measure the matrix-product throughput of the device."""
        return {"flops_per_second": peak_matmul_flops(self.hardware)}

    def measure(self, mode: str, limit_seconds: float) -> dict[str, Any]:
        """Warm up and time consecutive steps of a mode; return its speed entry as ``finish``."""
        self.step, seconds = self._bench(self.first_batch).step(mode), self.config.measure.speed_seconds
        timing = measure(self.step, self.hardware.device, limit_seconds, self.hardware.compile, seconds)
        return self.finish(mode, FIXED, timing)

    def warm_up(self, mode: str, limit_seconds: float) -> dict[str, Any]:
        """Warm up the step of a mode; if the batch policy is ``largest``, find the largest batch size first."""
        batch, stopped_by = self.job["batch"], ""
        if batch == LARGEST:
            batch, stopped_by = largest_batch(lambda size: self._try(mode, size), self.job["memory_limit_bytes"])
        self.step = self._bench(batch).step(mode)
        self.warm = warm_up(self.step, self.hardware.device, self.hardware.compile, limit_seconds)
        self.rounds = []
        gc.freeze()
        self._release_device()
        return {**asdict(self.warm), "batch_size": batch, "stopped_by": stopped_by}

    def resume(self, mode: str, batch_size: int, step_seconds: float) -> dict[str, Any]:
        """Prepare the step of a mode that was warmed up and timed in an earlier visit."""
        self.step, self.warm = self._bench(batch_size).step(mode), WarmUp(0.0, step_seconds)
        block(self.step, self.hardware.device, first_steps(self.hardware.device, self.hardware.compile))
        gc.freeze()
        self._release_device()
        return {}

    def time_block(self, steps: int) -> dict[str, Any]:
        """Run one round of ``steps`` steps and return the seconds of each.

        If steps are short, one step that is not timed comes first, because the caches contain data of other workers. On
        CUDA this step is always run, because cached memory was released for the other workers.
        """
        assert self.step is not None
        with collector_off():
            if self.hardware.device.type == "cuda" or self.warm.step_seconds < LEAD_SECONDS:
                block(self.step, self.hardware.device, 1)
            self.rounds.append(block(self.step, self.hardware.device, steps))
        self._release_device()
        return {"seconds": self.rounds[-1]}

    def release(self) -> dict[str, Any]:
        """Release the step, optimizer and gradients of the mode measured last, and the freed memory."""
        self.step = None
        if self.bench is not None:
            self.bench.release()
        hand_back()
        self._release_device()
        return {}

    def finish(self, mode: str, policy: str, timing: Timing | None = None) -> dict[str, Any]:
        """Return the speed entry of a mode, by default over all its rounds, with its memory on CUDA, and release it."""
        assert self.bench is not None and self.step is not None
        peak = self.bench.peak(self.step) if self.hardware.device.type == "cuda" else PeakMemory()
        entry = self.bench.entry(mode, self.length, timing or summary(self.rounds, self.warm), peak, policy)
        self.release()
        return {"entry": entry}

    def measure_peak_memory(self, mode: str, batch_size: int) -> dict[str, Any]:
        """Measure the peak of resident memory, in a process whose allocator returns freed memory immediately."""
        bench = self._bench(batch_size)
        gc.freeze()
        return {"memory": bench.measure_peak_memory(mode)}

    def energy(self) -> dict[str, Any]:
        """Measure the energy of a training step."""
        return {"energy": (self.bench or self._bench(self.first_batch)).energy()}

    def _bench(self, batch_size: int) -> Bench:
        """Return the benchmark of the current length with ``batch_size``, rebuilt if the size differs."""
        if self.bench is None or self.bench.batch.size != batch_size:
            # Collect all garbage here, which is slow but not timed. Collections before rounds skip the objects that
            # existed after the warm-up, which are frozen.
            self.bench = self.step = None
            gc.unfreeze()
            gc.collect()
            self._release_device()
            self.bench = Bench.build(self.config, self.spec, self.length, batch_size, self.hardware)
        return self.bench

    def _try(self, mode: str, batch_size: int) -> tuple[int | None, float]:
        """Return peak bytes and seconds of a step with ``batch_size`` rows."""
        bench = self._bench(batch_size)
        step = bench.step(mode)
        step()
        (seconds,) = block(step, self.hardware.device, 1)
        peak = bench.peak(step)
        bench.release()
        return peak_bytes(peak.as_dict()), seconds

    def _release_device(self) -> None:
        """Release cached memory of CUDA, or wait until the cores are idle, for the worker that is timed next."""
        if self.hardware.device.type == "cuda":
            torch.cuda.empty_cache()
        else:
            wait_for_idle_threads()


def largest_batch(
    attempt: Callable[[int], tuple[int | None, float]], memory_limit_bytes: int | None = None
) -> tuple[int, str]:
    """Double the batch size, starting from 1, as long as a step fits into memory and ``LONGEST_STEP_SECONDS``.

    ``attempt`` runs steps with a batch size, and returns the peak memory in bytes, None if unknown, and the seconds of
    a step. A size is not tried if twice the peak or the seconds of the previous one exceed the limit.

    Returns the largest size that was run, at most ``LARGEST_SIZE``, and the limit that ended the search: ``memory`` or
    ``time``. Raises the out-of-memory error if a single row does not fit, and any other error of ``attempt``.
    """
    size = 1
    peak, seconds = attempt(size)
    while size < LARGEST_SIZE:
        if memory_limit_bytes is not None and peak is not None and 2 * peak > memory_limit_bytes:
            return size, "memory"
        if 2 * seconds > LONGEST_STEP_SECONDS:
            break
        try:
            peak, seconds = attempt(2 * size)
        except Exception as error:
            if status_of(error)[0] != "out_of_memory":
                raise
            return size, "memory"
        size *= 2
    return size, "time"


def answers(commands: IO[str]) -> Iterator[dict[str, Any]]:
    """Yield an answer to every command; the answer to a failed command has ``failed``: status and reason."""
    job = json.loads(commands.readline())
    with forced(job["attention"]):
        model = TimedModel(job)
        for line in commands:
            arguments = json.loads(line)
            command = arguments.pop("command")
            try:
                answer = getattr(model, command)(**arguments)
            except Exception as error:
                answer = {"failed": status_of(error)}
            if "failed" in answer:  # outside the except block, because the traceback of the error references tensors
                gc.collect()
                model.release()
            yield answer


def wait_for_idle_threads(limit_seconds: float = LIMIT_SECONDS) -> None:
    """Wait until no other thread of this process is running, or ``limit_seconds`` have passed.

    Threads of OpenMP spin before they sleep: GNU's for 12 to 20 ms on two virtual cores, which made the first step of
    the next process longer by that time. Returns immediately on systems without ``/proc``, that is, outside Linux.
    """
    end, own = time.monotonic() + limit_seconds, str(threading.get_native_id())
    while time.monotonic() < end:
        if not any(task.name != own and _is_running(task) for task in Path("/proc/self/task").glob("*")):
            return
        time.sleep(POLL_SECONDS)


def _is_running(task: Path) -> bool:
    """Return whether a thread, a folder of ``/proc/self/task``, is in the state running."""
    with suppress(OSError):  # the thread has ended
        return task.joinpath("stat").read_text().rpartition(") ")[2].startswith("R")
    return False


if __name__ == "__main__":
    serve(answers)
