"""Measure a pair at one length in a separate process: ``python -m benchmarks.peers.worker``, with a job on stdin."""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Mapping
from typing import Any

import torch
from torch import nn

from lra_bench.profiling.timing import Step, collector_off, warm_up
from lra_bench.records.status import status_of
from lra_bench.runtime.memory import peak_memory
from lra_bench.runtime.subprocesses import serve

from .pair import Sizes
from .pairs import PAIRS

BLOCK_SECONDS = 0.2  # the load of the machine changes within a second, so neighbouring blocks must be short
MEMORY_STEPS = 2
CPU = torch.device("cpu")


def result(job: Mapping[str, Any]) -> dict[str, Any]:
    """Return the seconds of each contender's blocks, the peak of a single contender, or the failed contender."""
    torch.set_flush_denormal(True)  # as in every process of lra-bench
    torch.set_num_threads(job["threads"])
    (pair,) = (pair for pair in PAIRS if pair.name == job["pair"])
    sizes = Sizes(**job["sizes"])
    steps: dict[str, Step] = {}
    for contender in job["contenders"]:
        try:
            torch.manual_seed(0)
            steps[contender] = training_step(pair.layer(contender, sizes), sizes)
            steps[contender]()
        except Exception as error:
            return {"failed": [contender, ": ".join(status_of(error))]}
    if job["blocks"]:
        return {"seconds": alternate(steps, job["blocks"])}
    return {"peak": peak(*steps.values())}


def training_step(layer: nn.Module, sizes: Sizes) -> Step:
    """Return a step that runs the forward and backward pass of ``layer`` on fixed rows and clears the gradients."""
    generator = torch.Generator().manual_seed(1)
    x, gradient = (torch.randn(1, sizes.length, sizes.width, generator=generator) for _ in range(2))
    x.requires_grad_()
    layer.train()

    def step() -> None:
        layer(x).backward(gradient)
        layer.zero_grad(set_to_none=True)
        x.grad = None

    return step


def alternate(
    steps: Mapping[str, Step], blocks: int, clock: Callable[[], float] = time.perf_counter
) -> dict[str, list[float]]:
    """Return the seconds of a step in each of ``blocks`` interleaved blocks; the order is reversed after each round."""
    sizes = {name: max(1, round(BLOCK_SECONDS / warm_up(step, CPU).step_seconds)) for name, step in steps.items()}
    found: dict[str, list[float]] = {name: [] for name in steps}
    order = list(steps)
    with collector_off():
        for _ in range(blocks):
            for name in order:
                started = clock()
                for _ in range(sizes[name]):
                    steps[name]()
                found[name].append((clock() - started) / sizes[name])
            order.reverse()
    return found


def peak(step: Step) -> int | None:
    """Return the growth of resident memory by a step, in bytes."""
    with peak_memory(CPU) as found:
        for _ in range(MEMORY_STEPS):
            step()
    return found.peak_resident_growth_bytes


if __name__ == "__main__":
    serve(lambda jobs: (result(json.loads(job)) for job in jobs))
