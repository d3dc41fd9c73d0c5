"""A process that holds one model and measures when it is told: ``python -m lra_bench.profiling.comparison.worker``.

Reads a job and then commands from stdin, a line of JSON each, and answers each with one line. While it waits it
computes nothing, so that others can take their turns.
"""

from __future__ import annotations

import gc
import json
import os
import sys
from collections.abc import Iterator, Mapping
from dataclasses import asdict
from typing import IO, Any

import torch

from lra_bench.config.serialization import from_dict
from lra_bench.profiling.attention_backend import forced
from lra_bench.profiling.batch_search import largest_batch
from lra_bench.profiling.bench import Bench, spec_of, step_flops
from lra_bench.profiling.idle_threads import wait_for_idle_threads
from lra_bench.profiling.peak_matmul import peak_matmul_flops
from lra_bench.profiling.speed_point import LARGEST
from lra_bench.profiling.timing import Step, WarmUp, block, collector_off, first_steps, summary, warm_up
from lra_bench.profiling.worker import prepare_process
from lra_bench.records.status import status_of
from lra_bench.runtime.hardware import resolve
from lra_bench.runtime.memory import PeakMemory, hand_back

LEAD_SECONDS = 0.03


class TimedModel:
    """What the commands do; each returns its answer."""

    def __init__(self, job: Mapping[str, Any]) -> None:
        self.job, self.config, self.spec, self.length = job, from_dict(job["config"]), spec_of(job), 0
        self.hardware = resolve(self.config.hardware)
        self.hardware.apply()
        self.bench: Bench | None = None
        self.step: Step | None = None
        self.warm = WarmUp(0.0, 0.0)
        self.rounds: list[list[float]] = []

    def build(self, length: int, flops: bool) -> dict[str, Any]:
        """Build the model for a length, in place of what there was, and count the FLOPs of a row where it is to.

        The others do so too, and nobody is timed.
        """
        self.length, self.bench, self.step = length, None, None
        self._bench(1 if self.job["batch"] == LARGEST else self.job["batch"])
        return {"flops": step_flops(self.config, self.spec, length) if flops else {}}

    def peak_matmul_flops(self) -> dict[str, Any]:
        """The fastest matrix product of the device."""
        return {"flops_per_second": peak_matmul_flops(self.hardware)}

    def warm_up(self, mode: str, limit_seconds: float) -> dict[str, Any]:
        """Choose the batch where it is to be the largest, then warm the step of a mode up."""
        batch, why = self.job["batch"], ""
        if batch == LARGEST:
            found = largest_batch(lambda size: self._try(mode, size), self.job["memory_limit_bytes"])
            batch, why = found.size, found.stopped_by
        self.step = self._bench(batch).step(mode)
        self.warm = warm_up(self.step, self.hardware.device, self.hardware.compile, limit_seconds)
        self.rounds = []
        gc.freeze()
        self._give_back()
        return {**asdict(self.warm), "batch_size": batch, "stopped_by": why}

    def resume(self, mode: str, batch_size: int, step_seconds: float) -> dict[str, Any]:
        """Take the step of a mode up that was warmed up and timed at another time."""
        self.step, self.warm = self._bench(batch_size).step(mode), WarmUp(0.0, step_seconds)
        block(self.step, self.hardware.device, first_steps(self.hardware.device, self.hardware.compile))
        gc.freeze()
        self._give_back()
        return {}

    def turn(self, steps: int) -> dict[str, Any]:
        """Seconds of each of so many steps.

        Where steps are short, one goes before that is not counted, for the caches are those of whoever had the turn
        before; on CUDA always, for memory was given back to leave it to the others.
        """
        assert self.step is not None
        with collector_off():
            if self.hardware.device.type == "cuda" or self.warm.step_seconds < LEAD_SECONDS:
                block(self.step, self.hardware.device, 1)
            self.rounds.append(block(self.step, self.hardware.device, steps))
        self._give_back()
        return {"seconds": self.rounds[-1]}

    def finish(self, mode: str, policy: str) -> dict[str, Any]:
        """The speed entry of the mode that was warmed up last, of all its turns; on CUDA with its memory."""
        assert self.bench is not None and self.step is not None
        peak = self.bench.peak(self.step) if self.hardware.device.type == "cuda" else PeakMemory()
        entry = self.bench.entry(mode, self.length, summary(self.rounds, self.warm), peak, policy)
        self.rest()
        return {"entry": entry}

    def rest(self) -> dict[str, Any]:
        """Let go what the mode measured last held on to."""
        self.step = None
        if self.bench is not None:
            self.bench.rest()
        hand_back()
        self._give_back()
        return {}

    def measure_peak_memory(self, mode: str, batch_size: int) -> dict[str, Any]:
        """Peak of resident memory; asked of a process with an allocator that keeps nothing."""
        bench = self._bench(batch_size)
        gc.freeze()
        return {"memory": bench.measure_peak_memory(mode)}

    def energy(self) -> dict[str, Any]:
        """Joules of a training step."""
        assert self.bench is not None
        return {"energy": self.bench.energy()}

    def _bench(self, batch_size: int) -> Bench:
        if self.bench is None or self.bench.batch.size != batch_size:
            # Garbage is looked for here, through all that torch is made of: nobody is timed. The collections before
            # turns pass over what a first step was taken with, which is frozen.
            self.bench = self.step = None
            gc.unfreeze()
            gc.collect()
            self._give_back()
            self.bench = Bench.build(self.config, self.spec, self.length, batch_size, self.hardware)
        return self.bench

    def _try(self, mode: str, batch_size: int) -> tuple[int | None, float]:
        """Peak bytes and seconds of a step on so many rows."""
        bench = self._bench(batch_size)
        step = bench.step(mode)
        step()
        (seconds,) = block(step, self.hardware.device, 1)
        peak = bench.peak(step)
        bench.rest()
        kinds = (peak.peak_allocated_bytes, peak.peak_resident_growth_bytes)
        return next((kind for kind in kinds if kind is not None), None), seconds

    def _give_back(self) -> None:
        """Leave what CUDA's allocator keeps for later, or the cores, to whoever has the next turn."""
        if self.hardware.device.type == "cuda":
            torch.cuda.empty_cache()
        else:
            wait_for_idle_threads()


def answers(commands: IO[str]) -> Iterator[dict[str, Any]]:
    """An answer to every command; what goes wrong is one too, with ``failed`` as status and reason."""
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
                model.rest()
            # Not while the error is at hand, whose frames hold what there was no room for.
            yield answer


def main() -> None:
    """Answer until stdin ends. What a model prints goes to stderr, for stdout belongs to the answers."""
    prepare_process()
    with os.fdopen(os.dup(sys.stdout.fileno()), "w", encoding="utf-8") as channel:
        os.dup2(sys.stderr.fileno(), sys.stdout.fileno())
        for answer in answers(sys.stdin):
            print(json.dumps(answer), file=channel, flush=True)


if __name__ == "__main__":
    main()
