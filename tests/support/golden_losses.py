"""Losses of the first twenty steps of three models, stored in ``tests/golden``.

``python -m tests.support.golden_losses`` writes them again.
"""

import json
import math
import os
import tempfile
from dataclasses import asdict, dataclass, replace
from functools import cache
from pathlib import Path

import torch

from lra_bench.config import compose as configuration
from lra_bench.config.objects import build_model, build_task
from lra_bench.config.optimization import TRAINING_REVISION
from lra_bench.config.schema import CellConfig
from lra_bench.data.batches import Rows
from lra_bench.data.cache import Cache
from lra_bench.runtime.hardware import Hardware
from lra_bench.runtime.processor import processor
from lra_bench.training.checkpoint import Checkpoints
from lra_bench.training.loop import train

FOLDER = Path(__file__).parents[1] / "golden"
MODELS = ("transformer", "performer", "local")
STEPS = 20
CPU = Hardware(torch.device("cpu"), "fp32", 1, False, None, "cpu-1t")


@dataclass(frozen=True)
class Run:
    """Loss and gradient norm of every step, and the final validation loss."""

    losses: list[float]
    gradient_norms: list[float]
    validation_loss: float


@cache
def composed(model: str) -> CellConfig:
    """Return the configuration of the smoke run of ListOps, with dropout."""
    # Every override needs another composition, which takes longer than the run.
    config = configuration.compose(["protocol=smoke", "task=listops", f"model={model}"]).config
    return replace(config, train=replace(config.train, steps=STEPS, evaluate_every=STEPS))


def golden_run(model: str, hardware: Hardware = CPU) -> Run:
    """Train the smoke run on ``hardware`` and return its losses."""
    config = composed(model)
    task = build_task(config)
    task.prepare(Cache())
    rows = {name: Rows(task.split(name), task.spec) for name in ("train", "validation")}
    threads = torch.get_num_threads()
    hardware.apply()
    with tempfile.TemporaryDirectory() as folder:
        checkpoints = Checkpoints(Path(folder), math.inf)
        built = build_model(config, task.spec).to(hardware.device)
        fit = train(built, rows, task.spec, config, hardware, checkpoints, lambda *_: None)
    torch.set_num_threads(threads)
    curve, ((_, validation_loss, _),) = fit.state.curve, fit.state.validations
    return Run([row[0] for row in curve], [row[2] for row in curve], validation_loss)


def platform() -> dict[str, str]:
    """Return the properties that determine the order of summation; if they are equal, losses are equal bit by bit."""
    return {
        "torch": torch.__version__,
        "instructions": torch.backends.cpu.get_cpu_capability(),
        "processor": f"{processor().name}, {processor().family}-{processor().model}-{processor().stepping}",
    }


def stored_run(model: str) -> tuple[dict[str, str], Run]:
    """Return the platform and the run stored in a model's file."""
    content = json.loads((FOLDER / f"{model}.json").read_text(encoding="utf-8"))
    return content["platform"], Run(**content["run"])


def stored_revision(model: str) -> int:
    """Return the revision of training with which the run in a model's file was made."""
    return int(json.loads((FOLDER / f"{model}.json").read_text(encoding="utf-8"))["training_revision"])


def main() -> None:
    """Write the file of every model on this machine, with data generated in a temporary cache."""
    FOLDER.mkdir(exist_ok=True)
    with tempfile.TemporaryDirectory() as cache:
        os.environ["LRA_BENCH_CACHE"] = cache
        for model in MODELS:
            run = asdict(golden_run(model))
            content = {"platform": platform(), "training_revision": TRAINING_REVISION, "run": run}
            (FOLDER / f"{model}.json").write_text(json.dumps(content, indent=1) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
