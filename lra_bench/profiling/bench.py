"""A model with a batch on the device: warm up a step of either mode, time it, and measure its memory."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass, field, replace
from functools import partial
from typing import Any

from torch import nn

from lra_bench.config.objects import build_model
from lra_bench.config.schema import CellConfig, Train
from lra_bench.contracts import Batch, TaskSpec, UserError
from lra_bench.records.sections import SpeedPoint
from lra_bench.records.status import status_of
from lra_bench.runtime.hardware import Hardware
from lra_bench.runtime.memory import PeakMemory, activation_bytes, gradient_bytes, peak_memory, static_bytes
from lra_bench.training.compilation import Compilation
from lra_bench.training.optimizer import Optimizer

from .attention_backend import attention_backend
from .energy import Energy, counter_of, measure_energy
from .flops import META, ROUTES, count_flops
from .speed_point import FIXED, entry_of
from .steps import inference_step, train_step
from .synthetic import spec_at, synthetic_batch, tokens_in
from .timing import Step, Timing, warm_up

FEW_BYTES = 32 << 20
WINDOWS = 5
LONGEST_ON_CPU = 4096  # beyond it the scores of a model that has to be counted on the CPU might fill the memory


def model_at(config: CellConfig, spec: TaskSpec, length: int) -> nn.Module:
    """The model built as for rows of ``length``: what a step costs does not depend on what was trained.

    Raises ``UserError`` where task or model has no such length.
    """
    at = spec_at(spec, length)
    backbone = replace(config.backbone, max_length=config.backbone.max_length and length)
    model: nn.Module = build_model(replace(config, backbone=backbone), at)
    for question, subject in (("supports", at), ("supports_length", length)):
        ask = getattr(model, question, None)
        if ask is not None and (reason := ask(subject)):
            raise UserError(reason)
    return model


def spec_of(job: Mapping[str, Any]) -> TaskSpec:
    """The task's spec as a job carries it, through JSON."""
    return TaskSpec(**{**job["spec"], "grid": tuple(job["spec"]["grid"]) if job["spec"]["grid"] else None})


@dataclass
class Bench:
    """A model, compiled or not, a batch, and the step of the mode that was asked for last."""

    model: nn.Module
    compilation: Compilation
    batch: Batch
    train: Train
    hardware: Hardware
    optimizer: Optimizer | None = field(default=None, init=False)

    @classmethod
    def build(cls, config: CellConfig, spec: TaskSpec, length: int, batch_size: int, hardware: Hardware) -> Bench:
        """The model of a configuration with a synthetic batch, both on the device."""
        model = hardware.place(model_at(config, spec, length))
        batch = synthetic_batch(spec_at(spec, length), batch_size, length, hardware.device, config.seed)
        return cls(model, Compilation(model, hardware.compile), batch, config.train, hardware)

    def step(self, mode: str) -> Step:
        """A step of ``inference`` or ``train``; one mode at a time, for the model is switched to it."""
        self.optimizer, run = None, self.compilation.run
        self.compilation.begin()
        if mode == "inference":
            step = inference_step(run, self.batch, self.hardware, self.model)
        else:
            self.optimizer = Optimizer(self.model, self.train, self.hardware)
            step = train_step(run, self.batch, self.optimizer, self.hardware, self.model)
        again = partial(self.model.zero_grad, set_to_none=True)
        return partial(self.compilation.guarded, step, again) if self.compilation.requested else step

    def entry(self, mode: str, length: int, timing: Timing, peak: PeakMemory, policy: str = FIXED) -> SpeedPoint:
        """The speed entry of the mode that was timed last, on CUDA with its memory; without FLOPs."""
        return {
            **entry_of(mode, length, self.batch.size, tokens_in(self.batch), timing, peak, policy),
            "compile": self.compilation.report(),
            "attention_backend": self.backend(),
            **self.memory(peak),  # type: ignore[typeddict-item]
        }

    def backend(self) -> str | None:
        """By which kernels exact attention runs in the present mode, None where none was seen or it cannot be told."""
        try:
            return attention_backend(self.model, self.batch, self.hardware)
        except Exception:  # a model that does not stand being watched can still be timed
            return None

    def memory(self, peak: PeakMemory) -> dict[str, int | None]:
        """Static and activation bytes of the present mode, whose peak is ``peak``; call after a step."""
        static = static_bytes(self.model, self.optimizer.wrapped if self.optimizer else None)
        gradients = gradient_bytes(self.model) if self.optimizer is not None else 0
        return {"static_bytes": static, "activation_bytes": activation_bytes(peak, static, gradients)}

    def measure_peak_memory(self, mode: str) -> dict[str, int | None]:
        """The peak of resident memory in ``mode``, after a step that makes lasting buffers, and activations in it."""
        step = self.step(mode)
        step()
        peak = self.peak(step)
        if (peak.peak_resident_growth_bytes or FEW_BYTES) < FEW_BYTES:
            # Of each core the kernel counts resident pages by the dozen, so the middle of several counts is nearer.
            several = [peak, *(self.peak(step) for _ in range(WINDOWS - 1))]
            peak = sorted(several, key=lambda each: each.peak_resident_growth_bytes or 0)[WINDOWS // 2]
        return {
            "peak_resident_growth_bytes": peak.peak_resident_growth_bytes,
            "activation_bytes": self.memory(peak)["activation_bytes"],
        }

    def peak(self, step: Step) -> PeakMemory:
        """The peak memory of a step that has run before."""
        with peak_memory(self.hardware.device) as peak:
            step()
        return peak

    def rest(self) -> None:
        """Let go what the mode just measured held on to."""
        self.optimizer = None
        self.model.zero_grad(set_to_none=True)

    def energy(self) -> dict[str, Any]:
        """The record's ``energy`` section: a training step, with the batch named in the route."""
        if isinstance(counter := counter_of(self.hardware.device), str):
            return asdict(Energy(None, f"none: {counter}"))
        try:
            step = self.step("train")
            warm_up(step, self.hardware.device, self.hardware.compile)
            found = measure_energy(step, self.hardware.device, counter)
        except Exception as error:
            return asdict(Energy(None, f"none: {status_of(error)[1]}"))
        of = f" of training on {tokens_in(self.batch)} tokens" if found.joules_per_step is not None else ""
        return asdict(replace(found, route=found.route + of))


def step_flops(config: CellConfig, spec: TaskSpec, length: int) -> dict[str, Any]:
    """FLOPs of a step on one row of ``length``, by mode; None where they cannot be counted there. ``route`` says how.

    Raises ``UserError`` where the model cannot be built so.
    """
    batch = synthetic_batch(spec_at(spec, length), 1, length, "cpu", config.seed)
    found = count_flops(model_at(config, spec, length), batch, ROUTES if length <= LONGEST_ON_CPU else (META,))
    known = {"route": found.route, "uncounted": list(found.uncounted)}
    return {"inference": found.forward, "train": found.training, **known}
