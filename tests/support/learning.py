"""Training a small model until it has learned its task, for as long as there is time: with the product's own loop."""

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
    """The best score so far, the step of the last evaluation, and seconds of the processor up to then."""

    score: float = 0.0
    step: int = 0
    seconds: float = 0.0


class Enough(Exception):
    """The task is learned, or time is up."""


def learn(folder, overrides, *, enough=0.95, seconds=SECONDS):
    """Train the cell of ``overrides`` in one thread until it scores ``enough`` or the processor's time is up."""
    with configuration.hydra_context():
        options = ["seed=0", "train.schedule=constant", f"train.evaluate_every={EVALUATE_EVERY}", *overrides]
        config = configuration.compose(options).config
    task = build_task(config)
    task.prepare(Cache())
    rows = {name: Rows(task.split(name), task.spec) for name in ("train", "validation")}
    torch.manual_seed(config.seed)
    model = build_model(config, task.spec)
    best, began = Learned(), time.process_time()

    def log(step, values):
        best.score = max(best.score, values["validation_score"])
        best.step, best.seconds = step, time.process_time() - began
        if best.score >= enough or best.seconds >= seconds:
            raise Enough

    with suppress(Enough):
        train(model, rows, task.spec, config, CPU, Checkpoints(folder, 3600.0), log)
    return best
