"""The process that measures a pair at one length: ``python -m benchmarks.peers.worker``, with a job on stdin."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Mapping
from typing import Any

import torch
from torch import nn

from lra_bench.profiling.timing import Step, collector_off, warm_up
from lra_bench.profiling.worker import run_job
from lra_bench.records.status import status_of
from lra_bench.runtime.memory import peak_memory

from .pair import Sizes
from .pairs import PAIRS

BLOCK_SECONDS = 0.2  # what else runs changes within a second: neighbours must be neighbours
MEMORY_STEPS = 2
CPU = torch.device("cpu")


def findings(job: Mapping[str, Any]) -> Iterator[dict[str, Any]]:
    """Seconds of each contender's blocks, or the peak of the only one; or what went wrong, and with whom."""
    torch.set_flush_denormal(True)  # as in every process that the product measures in
    torch.set_num_threads(job["threads"])
    (pair,) = (pair for pair in PAIRS if pair.name == job["pair"])
    sizes = Sizes(**job["sizes"])
    steps: dict[str, Step] = {}
    for whose in job["contenders"]:
        try:
            torch.manual_seed(0)
            steps[whose] = training_step(pair.layer(whose, sizes), sizes)
            steps[whose]()
        except Exception as error:
            yield {"failed": [whose, ": ".join(status_of(error))]}
            return
    if job["blocks"]:
        yield {"seconds": alternate(steps, job["blocks"])}
    else:
        yield {"peak": peak(*steps.values())}


def training_step(layer: nn.Module, sizes: Sizes) -> Step:
    """Forward and backward pass of ``layer`` on fixed rows, which leaves no gradient."""
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
    """Seconds of a step in each of ``blocks`` blocks; all take turns, in an order that turns round."""
    sizes = {name: max(1, round(BLOCK_SECONDS / warm_up(step, CPU).step_seconds)) for name, step in steps.items()}
    found: dict[str, list[float]] = {name: [] for name in steps}
    order = list(steps)
    with collector_off():
        for _ in range(blocks):
            for name in order:
                began = clock()
                for _ in range(sizes[name]):
                    steps[name]()
                found[name].append((clock() - began) / sizes[name])
            order.reverse()
    return found


def peak(step: Step) -> int | None:
    """How far a step makes resident memory grow, in bytes."""
    with peak_memory(CPU) as found:
        for _ in range(MEMORY_STEPS):
            step()
    return found.peak_resident_growth_bytes


if __name__ == "__main__":
    run_job(findings)
