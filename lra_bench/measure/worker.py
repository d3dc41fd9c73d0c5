"""The process that measures one model at one length: ``python -m lra_bench.measure.worker``.

Reads one job as JSON from stdin and appends one line of JSON per finding to the file that the job names, so that
what was found stays when the kernel ends this process for its memory.
"""

from __future__ import annotations

import json
import signal
import sys
from collections.abc import Callable, Iterator, Mapping
from contextlib import suppress
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

import torch
from torch import nn

from lra_bench.build import build_model
from lra_bench.child import end_with_parent
from lra_bench.contracts import Batch, TaskSpec, UserError
from lra_bench.hardware import Hardware, resolve
from lra_bench.records.schema import SpeedPoint
from lra_bench.training.optimizer import Optimizer

from .energy import Energy, measure_energy
from .entry import entry_of, unmeasured
from .flops import Flops, count_flops
from .memory import Peak, peak_memory
from .speed import Step, Timing, TooSlow, time_steps, warm_up
from .step import inference_step, train_step
from .synthetic import spec_at, synthetic_batch, tokens_in

MEMORY_STEPS = 2


def findings(job: Mapping[str, Any]) -> Iterator[dict[str, Any]]:
    """Speed entries of the job's modes, then what else it asks for, each under the name of the record's section."""
    config, length, batch_size = job["config"], job["length"], job["batch_size"]
    spec = TaskSpec(**{**job["spec"], "grid": tuple(job["spec"]["grid"]) if job["spec"]["grid"] else None})
    hardware = resolve(config["hardware"])
    hardware.apply()
    try:
        model = model_at(config, spec, length).to(hardware.device)
        batch = synthetic_batch(spec_at(spec, length), batch_size, length, hardware.device, config["seed"])
    except Exception as error:
        for mode in job["modes"]:
            yield {"speed": unmeasured(mode, length, batch_size, *status_of(error))}
    else:
        bench = Bench(model, torch.compile(model) if hardware.compile else model, batch, config["train"], hardware)
        for mode in job["modes"]:
            if job["memory_only"]:
                yield {"memory": [mode, bench.peak(mode).peak_resident_growth_bytes]}
            else:
                yield {"speed": bench.entry(mode, length, job["limit_seconds"])}
        if job["energy"]:
            yield {"energy": bench.energy()}
    if job["flops"]:
        yield {"flops": _flops(config, spec).as_record()}


def model_at(config: Mapping[str, Any], spec: TaskSpec, length: int) -> nn.Module:
    """The model built as for rows of ``length``: what a step costs does not depend on what was trained.

    Raises ``UserError`` where task or model has no such length.
    """
    at = spec_at(spec, length)
    backbone = {**config["backbone"], "max_length": config["backbone"]["max_length"] and length}
    model: nn.Module = build_model({**config, "backbone": backbone}, at)
    for question, subject in (("supports", at), ("supports_length", length)):
        ask = getattr(model, question, None)
        if ask is not None and (reason := ask(subject)):
            raise UserError(reason)
    return model


def status_of(error: Exception) -> tuple[str, str]:
    """The record's status and reason for what went wrong."""
    reason = (str(error).strip() or type(error).__name__).splitlines()[0]
    if isinstance(error, UserError):
        return "incompatible", reason
    if isinstance(error, TooSlow):
        return "timeout", reason
    if isinstance(error, torch.OutOfMemoryError | MemoryError) or "allocate memory" in str(error):
        return "out_of_memory", reason
    return "failed", f"{type(error).__name__}: {reason}"


@dataclass(frozen=True)
class Bench:
    """A model with its compiled form, on the device with a batch: one step of it can be measured in either mode."""

    model: nn.Module
    run: Any
    batch: Batch
    train: Mapping[str, Any]
    hardware: Hardware

    def step(self, mode: str) -> Step:
        """A step of ``inference`` or ``train``; one mode at a time, for the model is switched to it."""
        if mode == "inference":
            return inference_step(self.run, self.batch, self.hardware, self.model)
        optimizer = Optimizer(self.model, self.train, self.hardware)
        return train_step(self.run, self.batch, optimizer, self.hardware, self.model)

    def entry(self, mode: str, length: int, limit_seconds: float) -> SpeedPoint:
        """The speed entry of ``mode``, whatever goes wrong."""
        try:
            timing, peak = self._measure(self.step(mode), limit_seconds)
        except Exception as error:
            return unmeasured(mode, length, self.batch.size, *status_of(error))
        finally:
            self.model.zero_grad(set_to_none=True)
        return entry_of(mode, length, self.batch.size, tokens_in(self.batch), timing, peak)

    def peak(self, mode: str) -> Peak:
        """The peak memory of ``mode``, after a step that makes lasting buffers."""
        step = self.step(mode)
        step()
        return self._peak(step)

    def _measure(self, step: Step, limit_seconds: float) -> tuple[Timing, Peak]:
        """Time, and on CUDA memory; a CPU's memory wants another allocator, so a process of its own."""
        device = self.hardware.device
        warm = warm_up(step, device, self.hardware.compile)
        timing = time_steps(step, device, warm, limit_seconds)
        return timing, self._peak(step) if device.type == "cuda" else Peak()

    def _peak(self, step: Step) -> Peak:
        with peak_memory(self.hardware.device) as peak:
            for _ in range(MEMORY_STEPS):
                step()
        return peak

    def energy(self) -> dict[str, Any]:
        """The record's ``energy`` section: a training step, with the batch named in the route."""
        try:
            step = self.step("train")
            warm_up(step, self.hardware.device, self.hardware.compile)
            found = measure_energy(step, self.hardware.device)
        except Exception as error:
            return asdict(Energy(None, f"none: {status_of(error)[1]}"))
        of = f" of training on {tokens_in(self.batch)} tokens" if found.joules_per_step is not None else ""
        return asdict(replace(found, route=found.route + of))


def _flops(config: Mapping[str, Any], spec: TaskSpec) -> Flops:
    length = spec.train_length
    try:
        return count_flops(build_model(config, spec), synthetic_batch(spec, 1, length, "cpu", config["seed"]))
    except UserError as error:
        return Flops(None, None, 0, length, f"none ({error})")


def work_off(findings: Callable[[Mapping[str, Any]], Iterator[dict[str, Any]]]) -> None:
    """Work off the job on stdin, which asks for such ``findings``."""
    end_with_parent(signal.SIGKILL)
    with suppress(OSError):  # when memory runs out the kernel shall take this process first
        Path("/proc/self/oom_score_adj").write_text("1000")
    job = json.load(sys.stdin)
    with Path(job["answers"]).open("a", encoding="utf-8") as answers:
        for finding in findings(job):
            print(json.dumps(finding), file=answers, flush=True)


if __name__ == "__main__":
    work_off(findings)
