"""Benchmark the inference and training steps of one model: time, memory, energy and FLOPs."""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any

import torch
from torch import nn
from torch.utils._pytree import tree_map

from lra_bench.config.objects import build_model
from lra_bench.config.schema import CellConfig, Train
from lra_bench.contracts import Batch, Finished, TaskSpec, UserError
from lra_bench.records.status import status_of
from lra_bench.runtime.hardware import Hardware
from lra_bench.runtime.memory import PeakMemory, activation_bytes, gradient_bytes, peak_memory, static_bytes
from lra_bench.training.compilation import Compilation
from lra_bench.training.loop import after_step, forward_backward, stepped_modules
from lra_bench.training.optimizer import Optimizer

from .attention_backend import attention_backend
from .energy import counter_of, measure_energy, unknown_energy
from .flops import META, ROUTES, FlopCount, count_flops
from .sections import FIXED, Energy, SpeedPoint, entry_of
from .synthetic import spec_at, synthetic_batch, tokens_in
from .timing import Step, Timing, warm_up

FEW_BYTES = 32 << 20
WINDOWS = 5
LONGEST_ON_CPU = 4096
"""Longest sequence whose FLOPs are counted on the CPU; the attention scores of longer ones could fill the memory."""


def model_at(config: CellConfig, spec: TaskSpec, length: int) -> nn.Module:
    """Build an untrained model for rows of ``length`` tokens; the cost of a step does not depend on the weights.

    Raises ``UserError`` if the model does not support the task or the length.
    """
    at = spec_at(spec, length)
    backbone = replace(config.backbone, max_length=config.backbone.max_length and length)
    model: nn.Module = build_model(replace(config, backbone=backbone), at)
    if isinstance(model, Finished):
        model.finish_for_benchmark()
    for name, argument in (("supports", at), ("supports_length", length)):
        check = getattr(model, name, None)
        if check is not None and (reason := check(argument)):
            raise UserError(reason)
    return model


def spec_of(job: Mapping[str, Any]) -> TaskSpec:
    """Return the task specification of a job that was read from JSON."""
    return TaskSpec(**{**job["spec"], "grid": tuple(job["spec"]["grid"]) if job["spec"]["grid"] else None})


@dataclass
class Bench:
    """A model, its compilation, and a batch, for steps of one mode at a time.

    ``optimizer`` is that of the last requested mode, None for inference.
    """

    model: nn.Module
    compilation: Compilation
    batch: Batch
    train: Train
    hardware: Hardware
    optimizer: Optimizer | None = field(default=None, init=False)

    @classmethod
    def build(cls, config: CellConfig, spec: TaskSpec, length: int, batch_size: int, hardware: Hardware) -> Bench:
        """Build the model of a configuration and a synthetic batch, both on the device."""
        model = hardware.place(model_at(config, spec, length))
        batch = synthetic_batch(spec_at(spec, length), batch_size, length, hardware.device, config.seed)
        return cls(model, Compilation(model, hardware.compile), batch, config.train, hardware)

    def step(self, mode: str) -> Step:
        """Return a step of mode ``inference`` or ``train`` and switch the model to it; earlier steps become invalid."""
        self.optimizer, run = None, self.compilation.run
        self.compilation.begin()
        if mode == "inference":
            step = inference_step(run, self.batch, self.hardware, self.model)
        else:
            self.optimizer = Optimizer(self.model, self.train, self.hardware)
            step = train_step(run, self.batch, self.optimizer, self.hardware, self.model)
        undo = partial(self.model.zero_grad, set_to_none=True)
        return partial(self.compilation.guarded, step, undo) if self.compilation.requested else step

    def entry(self, mode: str, length: int, timing: Timing, peak: PeakMemory, policy: str = FIXED) -> SpeedPoint:
        """Return the speed entry of the mode that was timed last, with its memory on CUDA and without FLOPs."""
        backend = None
        with suppress(Exception):  # a model that cannot be traced can still be timed
            backend = attention_backend(self.model, self.batch, self.hardware)
        return {
            **entry_of(mode, length, self.batch.size, tokens_in(self.batch), timing, peak, policy),
            "compile": self.compilation.report(),
            "attention_backend": backend,
            **self.memory(peak),  # type: ignore[typeddict-item]
        }

    def memory(self, peak: PeakMemory) -> dict[str, int | None]:
        """Return static and activation bytes of the current mode, given its ``peak``; call it after a step."""
        static = static_bytes(self.model, self.optimizer.wrapped if self.optimizer else None)
        gradients = gradient_bytes(self.model) if self.optimizer is not None else 0
        return {"static_bytes": static, "activation_bytes": activation_bytes(peak, static, gradients)}

    def measure_peak_memory(self, mode: str) -> dict[str, int | None]:
        """Measure the peak growth of resident memory and the activation bytes of a step in ``mode``.

        A first step allocates persistent buffers and is not measured. For small peaks the median of ``WINDOWS`` steps
        is reported.
        """
        step = self.step(mode)
        step()
        peak = self.peak(step)
        if (peak.peak_resident_growth_bytes or FEW_BYTES) < FEW_BYTES:
            # The kernel updates the count of resident pages in batches per core; the median of several is closer.
            several = [peak, *(self.peak(step) for _ in range(WINDOWS - 1))]
            peak = sorted(several, key=lambda each: each.peak_resident_growth_bytes or 0)[WINDOWS // 2]
        return {
            "peak_resident_growth_bytes": peak.peak_resident_growth_bytes,
            "activation_bytes": self.memory(peak)["activation_bytes"],
        }

    def peak(self, step: Step) -> PeakMemory:
        """Measure the peak memory of a step that has already run once."""
        with peak_memory(self.hardware.device) as peak:
            step()
        return peak

    def release(self) -> None:
        """Release the optimizer and the gradients of the mode measured last."""
        self.optimizer = None
        self.model.zero_grad(set_to_none=True)

    def energy(self) -> Energy:
        """Measure the energy of a training step; ``route`` contains the tokens per step, or why there is none."""
        try:
            if isinstance(counter := counter_of(self.hardware.device), str):
                return unknown_energy(counter)
            step = self.step("train")
            warm_up(step, self.hardware.device, self.hardware.compile)
            found = measure_energy(step, self.hardware.device, counter)
        except Exception as error:
            return unknown_energy(status_of(error)[1])
        if found["joules_per_step"] is not None:
            found["route"] = f"{found['route']} of training on {tokens_in(self.batch)} tokens"
        return found


def train_step(run: nn.Module, batch: Batch, optimizer: Optimizer, hardware: Hardware, model: nn.Module) -> Step:
    """Return a step that runs the forward and backward passes, clipping and the optimizer on ``batch``, with dropout.

    ``run`` is ``model`` or its compiled form. Memory is passed from step to step as in a stream. The learning rate
    stays at that of the first step; otherwise thousands of steps on one batch could drive weights and activations into
    ranges of numbers in which CPUs are slow.
    """
    model.train()
    memory: Any = None
    count = 0
    stepped = stepped_modules(model)

    def step() -> None:
        nonlocal memory, count
        _, memory, statistics = forward_backward(run, batch, optimizer, hardware, memory)
        optimizer.step(0)
        after_step(stepped, count, statistics)
        count += 1

    return step


def inference_step(run: nn.Module, batch: Batch, hardware: Hardware, model: nn.Module) -> Step:
    """Return a step that runs the forward pass on ``batch`` in evaluation mode, without gradients.

    ``run`` is ``model`` or its compiled form. Memory is passed from step to step.
    """
    model.eval()
    memory: Any = None

    def step() -> None:
        nonlocal memory
        with torch.inference_mode(), hardware.autocast():
            output = run(batch) if memory is None else run(batch, memory)
        memory = tree_map(lambda tensor: tensor, output.memory)

    return step


def step_flops(config: CellConfig, spec: TaskSpec, length: int) -> dict[str, Any]:
    """Count the FLOPs of a step on one row of ``length`` tokens, by mode, None if they cannot be counted.

    ``per_token`` is as ``flops_per_token``. Raises ``UserError`` if the model does not support the length.
    """
    found = _flops_of_row(config, spec, length)
    return {"inference": found.forward, "train": found.training, "per_token": found.as_record()}


def flops_per_token(config: CellConfig, spec: TaskSpec) -> dict[str, Any]:
    """Count the FLOPs per token at ``measure.flops_length``, by default the training length.

    Returns the record's ``flops`` section without the throughput of the device; without counts, it has the reason.
    """
    length = config.measure.flops_length or spec.train_length
    try:
        return _flops_of_row(config, spec, length).as_record()
    except UserError as error:
        return FlopCount(None, None, 0, length, f"none ({error})").as_record()


def _flops_of_row(config: CellConfig, spec: TaskSpec, length: int) -> FlopCount:
    """Count the FLOPs of one row; the CPU, which stores all attention weights, counts up to ``LONGEST_ON_CPU``."""
    batch = synthetic_batch(spec_at(spec, length), 1, length, "cpu", config.seed)
    return count_flops(model_at(config, spec, length), batch, ROUTES if length <= LONGEST_ON_CPU else (META,))
