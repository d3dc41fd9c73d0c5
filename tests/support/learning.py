"""Train a small model with the harness's training loop until it has learned its task or a time limit is reached."""

import time
from contextlib import suppress
from dataclasses import dataclass

import torch

from lra_bench.config import compose as configuration
from lra_bench.config.objects import build_model, build_task
from lra_bench.data.batches import Rows
from lra_bench.data.cache import Cache
from lra_bench.runtime.hardware import Hardware
from lra_bench.training.checkpoint import Checkpoints
from lra_bench.training.loop import train

CPU = Hardware(torch.device("cpu"), "fp32", 1, False, None, "cpu")
EVALUATE_EVERY = 100
SECONDS = 60.0


@dataclass
class Learned:
    """The best score so far, the step of the last evaluation, and the CPU seconds used until then."""

    score: float = 0.0
    step: int = 0
    seconds: float = 0.0


class Finished(Exception):
    """The task is learned, or the time limit is reached."""


def learn(folder, overrides, *, target_score=0.95, seconds=SECONDS):
    """Train the cell of ``overrides`` in one thread until it reaches ``target_score`` or ``seconds`` of CPU time."""
    options = ["seed=0", "train.schedule=constant", f"train.evaluate_every={EVALUATE_EVERY}", *overrides]
    config = configuration.compose(options).config
    task = build_task(config)
    task.prepare(Cache())
    rows = {name: Rows(task.split(name), task.spec) for name in ("train", "validation")}
    torch.manual_seed(config.seed)
    model = build_model(config, task.spec)
    best, start = Learned(), time.process_time()

    def log(step, values):
        best.score = max(best.score, values["validation_score"])
        best.step, best.seconds = step, time.process_time() - start
        if best.score >= target_score or best.seconds >= seconds:
            raise Finished

    with suppress(Finished):
        train(model, rows, task.spec, config, CPU, Checkpoints(folder, 3600.0), log)
    return best
