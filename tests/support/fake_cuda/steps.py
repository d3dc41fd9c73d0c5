"""Run the training steps and an evaluation of a system on the fake CUDA device, and collect what went wrong."""

from __future__ import annotations

import traceback
from dataclasses import dataclass, field, replace
from typing import Any

from torch._subclasses.fake_tensor import FakeTensorMode

from lra_bench.config.objects import build_task
from lra_bench.config.schema import CellConfig
from lra_bench.contracts import UserError
from lra_bench.profiling.bench import model_at
from lra_bench.profiling.synthetic import spec_at, synthetic_batch
from lra_bench.runtime.hardware import Hardware
from lra_bench.training.evaluation import evaluating, target_figures
from lra_bench.training.loop import after_step, forward_backward, stepped_modules
from lra_bench.training.optimizer import Optimizer

from .placement import place, place_batch, with_padding
from .replacements import DEVICE
from .watch import FOLDERS, PLANTED, ROOT, Watch

EXAMPLES = 4


@dataclass
class Found:
    """The outcome of a case.

    Attributes:
        status: ``ok``, ``incompatible`` (the harness refuses the case) or the name of an exception.
        reason: Stage and message of the exception, or why the case is refused.
        waits: Synchronisations with the host, by operator and place.
        uploads: Copies from pageable host memory, by place.
        risks: Calls of fused attention that may fail or be slow.
        launches: Launches of the last training step.
    """

    status: str = "ok"
    reason: str = ""
    waits: dict[str, int] = field(default_factory=dict)
    uploads: dict[str, int] = field(default_factory=dict)
    risks: dict[str, int] = field(default_factory=dict)
    launches: int = 0


def run_case(config: CellConfig, precision: str, longest: int | None = None) -> Found:
    """Run two training steps and evaluations, with padded and with full sequences, of the task's training length.

    The second training step receives the memory of the first. With ``longest``, longer tasks are shortened to it.
    """
    try:
        spec = build_task(config).spec
        length = min(longest or spec.train_length, spec.train_length)
        model, spec = model_at(config, spec, length), spec_at(spec, length)
    except UserError as error:
        return Found("incompatible", str(error))
    hardware = Hardware(DEVICE, precision, 1, False, None, "fake")
    hardware.apply()
    host_batch = synthetic_batch(spec, EXAMPLES, spec.train_length, "cpu")
    mode, watch, found = FakeTensorMode(allow_non_fake_inputs=True), Watch(), Found()
    place(model, mode)
    stage, memory = "", None
    try:
        padded, full = (place_batch(each, mode) for each in (with_padding(host_batch), host_batch))
        batches = {"padded": replace(padded, full=False), "full": replace(full, full=True)}
        with mode:
            optimizer = Optimizer(model, config.train, hardware)
            stepped = stepped_modules(model)
            model.train()
            for step, (rows, batch) in enumerate(batches.items()):
                stage = f"training step on {rows} sequences"
                watch.launches.clear()
                with watch:
                    loss, memory, statistics = forward_backward(model, batch, optimizer, hardware, memory)
                    norm = optimizer.step(step)
                    after_step(stepped, step, statistics)
                if {loss.device, norm.device} != {DEVICE}:
                    raise RuntimeError(f"loss on {loss.device}, norm on {norm.device}")
            found.launches = watch.launches.total()
            for rows, batch in batches.items():
                stage = f"evaluation of {rows} sequences"
                with evaluating(model), watch, hardware.autocast():
                    target_figures(model(batch), batch)
    except Exception as error:
        message = (str(error).strip() or type(error).__name__).splitlines()[0]
        found.status, found.reason = type(error).__name__, f"{stage}: {message[:300]} ({_site_of(error)})"
    found.waits, found.uploads, found.risks = dict(watch.waits), dict(watch.uploads), dict(watch.risks)
    return found


def _site_of(error: BaseException) -> str:
    """Return file and line of the innermost frame of an exception in the project's code."""
    frames: list[Any] = list(traceback.extract_tb(error.__traceback__))
    own = [each for each in frames if each.filename.startswith(FOLDERS) or each.filename == PLANTED]
    return f"{own[-1].filename.removeprefix(f'{ROOT}/')}:{own[-1].lineno}" if own else "outside the project"
