"""Overhead of the training loop over a minimal loop, measured interleaved on quick ListOps.

Run: ``python benchmarks/loop_overhead.py [model] [blocks] [processes]``. Both loops train the same model from the same
seed with the same batches, clipping, schedule and optimizer. They alternate in blocks of five steps in a single thread,
because two threads would differ in allocator arenas and thread teams. The allocator keeps freed memory; otherwise page
faults after each reduction of the heap would affect one of the loops at random (two minimal loops differed by 2 %). The
output is the ratio of times, training loop over minimal loop, as the median over neighbouring blocks and as the ratio
of the sums over all blocks, each with its 95 % interval (bootstrap over processes, then over pairs of blocks).
"""

from __future__ import annotations

import math
import multiprocessing
import os
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F
from torch import nn

from lra_bench.config import compose as configuration
from lra_bench.config.objects import build_model, build_task
from lra_bench.config.optimization import SCHEDULES
from lra_bench.config.schema import CellConfig
from lra_bench.data.batches import Rows, ShuffledBatches
from lra_bench.data.cache import Cache
from lra_bench.runtime.hardware import resolve
from lra_bench.training.checkpoint import Checkpoints
from lra_bench.training.loop import train
from lra_bench.training.optimizer import parameter_groups

BLOCK_STEPS = 5
KEEP_FREED_MEMORY = {f"MALLOC_{name}_": str(2**30) for name in ("TOP_PAD", "MMAP_THRESHOLD", "TRIM_THRESHOLD")}


def minimal_blocks(model: nn.Module, rows: Rows, config: CellConfig) -> Iterator[None]:
    """Train with a minimal loop (batch, forward, loss, backward, clip, schedule, AdamW); yield after each block."""
    recipe = config.train
    batches = ShuffledBatches(rows, recipe.batch_size, config.seed)
    adamw = torch.optim.AdamW(
        parameter_groups(model, recipe.lr, recipe.weight_decay),
        betas=(recipe.betas[0], recipe.betas[1]),
        eps=recipe.eps,
        fused=True,
    )
    parameters = list(model.parameters())
    model.train()
    for step in range(recipe.steps):
        batch = batches(step)
        loss = F.cross_entropy(model(batch).logits, batch.targets)
        loss.backward()
        nn.utils.clip_grad_norm_(parameters, recipe.clip or math.inf)
        factor = SCHEDULES[recipe.schedule](step, recipe.steps, recipe.warmup_steps)
        for group in adamw.param_groups:
            group["lr"] = group["peak_lr"] * factor
        adamw.step()
        adamw.zero_grad(set_to_none=True)
        if (step + 1) % BLOCK_STEPS == 0:
            yield


class AlternatingLoops:
    """A forward pre-hook of the training loop that runs a block of the minimal loop after each of its own blocks."""

    def __init__(self, minimal: Iterator[None]) -> None:
        self.minimal = minimal
        self.loop_seconds: list[float] = []
        self.minimal_seconds: list[float] = []
        self.steps = 0
        self.started = 0.0

    def __call__(self, model: nn.Module, _: Any) -> None:
        """Count the step and, after each block, run a block of the minimal loop."""
        if not model.training:
            return
        if self.steps % BLOCK_STEPS == 0:
            ended = time.perf_counter()
            if self.steps:
                self.loop_seconds.append((ended - self.started) / BLOCK_STEPS)
            # Both loops use the global generator, so its state is restored for the training loop.
            state = torch.get_rng_state()
            started = time.perf_counter()
            next(self.minimal, None)
            self.minimal_seconds.append((time.perf_counter() - started) / BLOCK_STEPS)
            torch.set_rng_state(state)
            self.started = time.perf_counter()
        self.steps += 1


def measure(name: str, blocks: int) -> tuple[np.ndarray, np.ndarray]:
    """Return the seconds per step of neighbouring blocks, of the training loop and of the minimal loop."""
    config = configuration.compose(
        [f"model={name}", "task=listops", "protocol=quick", "hardware=cpu", "tracker=none",
         f"train.steps={blocks * BLOCK_STEPS}", "train.evaluate_every=1000000"]
    ).config  # fmt: skip
    hardware = resolve(config.hardware)
    hardware.apply()
    task = build_task(config)
    task.prepare(Cache())
    rows = Rows(task.split("train"), task.spec)
    few = Rows(task.split("validation").select(range(32)), task.spec)
    model = build_model(config, task.spec)
    loops = AlternatingLoops(minimal_blocks(build_model(config, task.spec), rows, config))
    model.register_forward_pre_hook(loops)
    with tempfile.TemporaryDirectory() as folder:
        checkpoints = Checkpoints(Path(folder), every_seconds=math.inf)
        train(model, {"train": rows, "validation": few}, task.spec, config, hardware, checkpoints, lambda *_: None)
    # The first two blocks are a warm-up. The last block of the training loop contains the final evaluation: not timed.
    return np.array(loops.loop_seconds[2:]), np.array(loops.minimal_seconds[2 : len(loops.loop_seconds)])


def main() -> None:
    """Measure in fresh processes and print the ratios; their intervals include the variation between processes."""
    name = sys.argv[1] if len(sys.argv) > 1 else "performer"
    blocks = int(sys.argv[2]) if len(sys.argv) > 2 else 60
    processes = int(sys.argv[3]) if len(sys.argv) > 3 else 5
    os.environ.update(KEEP_FREED_MEMORY)
    context = multiprocessing.get_context("spawn")
    runs = []
    for _ in range(processes):
        with context.Pool(1) as pool:
            runs.append(pool.apply(measure, (name, blocks)))
        loop, minimal = runs[-1]
        print(
            f"{name}: training loop {1e3 * np.median(loop):.2f} ms, minimal loop {1e3 * np.median(minimal):.2f} ms per "
            f"step, median ratio {np.median(loop / minimal):.3f}, {len(loop)} pairs of {BLOCK_STEPS} steps"
        )
    generator = np.random.default_rng(0)
    resamples = []
    for _ in range(2000):
        selected = [runs[index] for index in generator.integers(processes, size=processes)]
        blocks_of = [(run, generator.integers(len(run[0]), size=len(run[0]))) for run in selected]
        ratios = np.concatenate([run[0][rows] / run[1][rows] for run, rows in blocks_of])
        sums = [sum(run[side][rows].sum() for run, rows in blocks_of) for side in (0, 1)]
        resamples.append((np.median(ratios), sums[0] / sums[1]))
    loop, minimal = (np.concatenate(side) for side in zip(*runs, strict=True))
    for label, value, index in (
        ("median ratio", np.median(loop / minimal), 0),
        ("ratio of sums", loop.sum() / minimal.sum(), 1),
    ):
        low, high = np.quantile([resample[index] for resample in resamples], [0.025, 0.975])
        print(f"{label} {value:.3f} [{low:.3f}, {high:.3f}]")


if __name__ == "__main__":
    main()
