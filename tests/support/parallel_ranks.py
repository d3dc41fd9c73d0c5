"""Training in double precision, in one process or in several ranks (``python -m tests.support.parallel_ranks``)."""

import json
import sys
from dataclasses import asdict, dataclass, replace
from functools import cache
from pathlib import Path

import torch

from lra_bench.config import compose as configuration
from lra_bench.config.compose import Loader
from lra_bench.config.objects import build_model, build_task
from lra_bench.config.pretraining import pretrains
from lra_bench.config.schema import CellConfig
from lra_bench.data.batches import Rows
from lra_bench.data.cache import Cache
from lra_bench.runtime.hardware import Hardware, resolve
from lra_bench.training.checkpoint import Checkpoints
from lra_bench.training.loop import train
from lra_bench.training.parallel import ALONE, Group
from lra_bench.training.pretraining import load_pretrained, pretrain
from lra_bench.training.rank import connected
from lra_bench.training.ranks import running

SMOKE = ["protocol=smoke", "task=listops", "hardware=cpu", "hardware.threads=1", "backbone.dropout=0"]
LOADER = Loader(None)


@dataclass(frozen=True)
class Case:
    """One run: overrides, folder of checkpoints, whether weights are sharded, and the step after which it stops."""

    overrides: list[str]
    folder: str
    sharded: bool = False
    stop_after: int | None = None


@cache
def composed(overrides: tuple[str, ...]) -> CellConfig:
    return configuration.compose([*SMOKE, *overrides], load=LOADER).config


def trained(case: Case, group: Group = ALONE) -> dict:
    """Train a case and return losses, gradient norms, validations and the digest of the final weights."""
    torch.set_default_dtype(torch.float64)
    try:
        return _trained(case, group)
    finally:
        torch.set_default_dtype(torch.float32)


def _trained(case: Case, group: Group) -> dict:
    config = composed(tuple(case.overrides))
    hardware = resolve(config.hardware)
    task = build_task(config)
    task.prepare(Cache())
    rows = {name: Rows(task.split(name), task.spec) for name in ("train", "validation")}
    checkpoints = Checkpoints(Path(case.folder), 0 if case.stop_after else 9e9, group)

    def log(step: int, values: dict) -> None:
        if step == case.stop_after:
            raise KeyboardInterrupt

    model, before = build_model(config, task.spec), None
    try:
        if pretrains(config):
            before = pretrain(model, rows, task.spec, config, hardware, checkpoints, group)
            group.gather(None)  # the first rank has written the weights
            model = build_model(config, task.spec)  # those of ranks may be sharded
            load_pretrained(model, task.spec, config, checkpoints)
        fit = train(model, rows, task.spec, config, hardware, checkpoints, log, group)
    except KeyboardInterrupt:
        return {}
    state, figures = fit.state, fit.figures
    return {
        "pretraining": before.state.curve if before else [],
        "loss": [row[0] for row in state.curve],
        "norm": [row[2] for row in state.curve],
        "tokens": [row[3] for row in state.curve],
        "validation": [list(row) for row in state.validations],
        "weights": figures["final_weights_sha256"],
        "best_step": state.best_step,
    }


def in_ranks(cases: list[Case], processes: int, folder: Path) -> list[dict]:
    """Train all cases in one group of ``processes`` ranks and return the results of rank 0."""
    result = folder / "answer.json"
    request = {"cases": [asdict(case) for case in cases], "answer": str(result)}
    hardware = Hardware(torch.device("cpu"), "fp32", 1, False, None, "cpu", processes, "ddp")
    with running("tests.support.parallel_ranks", request, hardware) as ranks:
        ended = ranks.listen(lambda step, values: None)
    assert result.exists(), ended
    return json.loads(result.read_text())


def main() -> None:
    request = json.load(sys.stdin)
    hardware = Hardware(torch.device("cpu"), "fp32", 1, False, None, "cpu", strategy="ddp")
    with connected(hardware) as (group, _):
        cases = [Case(**case) for case in request["cases"]]
        found = [trained(case, replace(group, sharded=case.sharded)) for case in cases]
        if group.first:
            Path(request["answer"]).write_text(json.dumps(found))


if __name__ == "__main__":
    main()
