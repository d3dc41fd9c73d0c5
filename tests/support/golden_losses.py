"""Losses of the first twenty steps of three models, kept in ``tests/golden`` and made anew by

python -m tests.support.golden_losses
"""

import json
import math
import os
import tempfile
from contextlib import suppress
from dataclasses import asdict, dataclass, replace
from functools import cache
from pathlib import Path

import torch

from lra_bench.config import compose as configuration
from lra_bench.config.objects import build_model, build_task
from lra_bench.config.schema import CellConfig
from lra_bench.data.batches import Rows
from lra_bench.data.cache import Cache
from lra_bench.runtime.hardware import Hardware, processor_name
from lra_bench.training.checkpoint import Checkpoints
from lra_bench.training.loop import train

FOLDER = Path(__file__).parents[1] / "golden"
MODELS = ("transformer", "performer", "local")
STEPS = 20
CPU = Hardware(torch.device("cpu"), "fp32", 1, False, None, "cpu-1t")


@dataclass(frozen=True)
class Run:
    """Loss and norm of the gradient at every step, the validation loss at the end."""

    losses: list[float]
    gradient_norms: list[float]
    validation_loss: float


@cache
def composed(model: str) -> CellConfig:
    """The smoke run of ListOps, with dropout."""
    # Every override costs a composition more, which takes longer than the run.
    with configuration.hydra_context():
        config = configuration.compose(["protocol=smoke", "task=listops", f"model={model}"]).config
    return replace(config, train=replace(config.train, steps=STEPS, evaluate_every=STEPS))


def golden_run(model: str, hardware: Hardware = CPU) -> Run:
    """That run on some hardware."""
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
    """What decides the order of sums, and so the last bits: the same here and there, the losses are the same."""
    return {
        "torch": torch.__version__,
        "instructions": torch.backends.cpu.get_cpu_capability(),
        "processor": f"{processor_name()}, {_generation()}",
    }


def _generation() -> str:
    """Family, model and stepping of the processor: clouds give one name to several."""
    with suppress(OSError):
        lines = [line.partition(":") for line in Path("/proc/cpuinfo").read_text(encoding="utf-8").splitlines()]
        found = {name.strip(): value.strip() for name, _, value in reversed(lines)}
        return "-".join(found.get(name, "?") for name in ("cpu family", "model", "stepping"))
    return "unknown"


def kept(model: str) -> tuple[dict[str, str], Run]:
    """The platform on which a model's file was made, and the run in it."""
    content = json.loads((FOLDER / f"{model}.json").read_text(encoding="utf-8"))
    return content["platform"], Run(**content["run"])


def main() -> None:
    """Write the file of every model, on this machine; a cache of its own has the data made anew."""
    FOLDER.mkdir(exist_ok=True)
    with tempfile.TemporaryDirectory() as cache:
        os.environ["LRA_BENCH_CACHE"] = cache
        for model in MODELS:
            content = {"platform": platform(), "run": asdict(golden_run(model))}
            (FOLDER / f"{model}.json").write_text(json.dumps(content, indent=1) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
