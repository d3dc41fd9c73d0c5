"""What the training loop costs beyond the step itself: our loop against a bare one, interleaved, on quick ListOps.

Run: ``python benchmarks/loop_overhead.py [model] [blocks] [processes]``. Both loops train the same model from the same
seed with the same batches, clip, schedule and optimizer, and take turns in blocks of five steps in one thread: two
threads would differ by their allocator arenas and thread teams. The allocator keeps what it has taken, as the page
faults after each cut of the heap fall on one loop or the other by chance (two bare loops differed by 2 %). Printed is
the ratio of their times, ours over bare, as the median over neighbouring blocks and as the ratio of all blocks' sums,
each with its 95 % interval (bootstrap over processes, then over pairs of blocks).
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
NEVER_GIVE_BACK = {f"MALLOC_{name}_": str(2**30) for name in ("TOP_PAD", "MMAP_THRESHOLD", "TRIM_THRESHOLD")}


def bare_blocks(model: nn.Module, rows: Rows, config: CellConfig) -> Iterator[None]:
    """The least that trains (batch, forward, loss, backward, clip, schedule, AdamW), a block of steps at a time."""
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


class Turns:
    """A hook on the forward of our loop that lets the bare loop take its turn after each block, in the same thread."""

    def __init__(self, bare: Iterator[None]) -> None:
        self.bare = bare
        self.ours_seconds: list[float] = []
        self.bare_seconds: list[float] = []
        self.steps = 0
        self.began = 0.0

    def __call__(self, model: nn.Module, _: Any) -> None:
        """Called at the start of every forward."""
        if not model.training:
            return
        if self.steps % BLOCK_STEPS == 0:
            ended = time.perf_counter()
            if self.steps:
                self.ours_seconds.append((ended - self.began) / BLOCK_STEPS)
            # Generators are drawn from by both loops, each of which must see its own draws.
            state = torch.get_rng_state()
            began = time.perf_counter()
            next(self.bare, None)
            self.bare_seconds.append((time.perf_counter() - began) / BLOCK_STEPS)
            torch.set_rng_state(state)
            self.began = time.perf_counter()
        self.steps += 1


def measure(name: str, blocks: int) -> tuple[np.ndarray, np.ndarray]:
    """Seconds per step of neighbouring blocks, ours and bare."""
    with configuration.hydra_context():
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
    turns = Turns(bare_blocks(build_model(config, task.spec), rows, config))
    model.register_forward_pre_hook(turns)
    with tempfile.TemporaryDirectory() as folder:
        checkpoints = Checkpoints(Path(folder), every_seconds=math.inf)
        train(model, {"train": rows, "validation": few}, task.spec, config, hardware, checkpoints, lambda *_: None)
    # The first blocks warm up; our last one, which holds the closing evaluation, is not timed.
    return np.array(turns.ours_seconds[2:]), np.array(turns.bare_seconds[2 : len(turns.ours_seconds)])


def main() -> None:
    """Measure in fresh processes and print the ratios, with the spread between processes in the intervals."""
    name = sys.argv[1] if len(sys.argv) > 1 else "performer"
    blocks = int(sys.argv[2]) if len(sys.argv) > 2 else 60
    processes = int(sys.argv[3]) if len(sys.argv) > 3 else 5
    os.environ.update(NEVER_GIVE_BACK)
    context = multiprocessing.get_context("spawn")
    runs = []
    for _ in range(processes):
        with context.Pool(1) as pool:
            runs.append(pool.apply(measure, (name, blocks)))
        ours, bare = runs[-1]
        print(
            f"{name}: ours {1e3 * np.median(ours):.2f} ms, bare {1e3 * np.median(bare):.2f} ms per step, "
            f"median ratio {np.median(ours / bare):.3f}, {len(ours)} pairs of {BLOCK_STEPS} steps"
        )
    generator = np.random.default_rng(0)
    draws = []
    for _ in range(2000):
        picked = [runs[index] for index in generator.integers(processes, size=processes)]
        blocks_of = [(run, generator.integers(len(run[0]), size=len(run[0]))) for run in picked]
        ratios = np.concatenate([run[0][rows] / run[1][rows] for run, rows in blocks_of])
        sums = [sum(run[side][rows].sum() for run, rows in blocks_of) for side in (0, 1)]
        draws.append((np.median(ratios), sums[0] / sums[1]))
    ours, bare = (np.concatenate(side) for side in zip(*runs, strict=True))
    for what, value, index in (
        ("median ratio", np.median(ours / bare), 0),
        ("ratio of sums", ours.sum() / bare.sum(), 1),
    ):
        low, high = np.quantile([draw[index] for draw in draws], [0.025, 0.975])
        print(f"{what} {value:.3f} [{low:.3f}, {high:.3f}]")


if __name__ == "__main__":
    main()
