"""The step benchmark: speed, memory, FLOPs and energy of a model at increasing lengths, in separate processes."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict
from typing import Any

import torch

from lra_bench.config.schema import CellConfig, Measure
from lra_bench.config.serialization import as_dict
from lra_bench.contracts import TaskSpec
from lra_bench.progress import bar, say
from lra_bench.records.sections import Energy, Flops, SpeedPoint
from lra_bench.runtime.hardware import Hardware
from lra_bench.runtime.memory import KEEP_FREED_MEMORY, RETURN_FREED_MEMORY

from .bench import flops_per_token
from .scaling import growth, too_slow
from .speed_point import add_flops, unmeasured
from .state import measure_state
from .worker_pool import JobWorkers

MODES = ("inference", "train")
LENGTHS = {"cpu": (1024, 2048, 4096, 8192, 16384), "cuda": (1024, 2048, 3072, 4096, 8192, 16384)}
BATCH_SIZE = {"cpu": 1, "cuda": 32}
LIMIT_SECONDS = 25.0
START_SECONDS = 60.0
COMPILE_SECONDS = 600.0
NOT_DISTRIBUTED = "the step benchmark measures a single process; set hardware.strategy=none to run it"


def profile(
    config: CellConfig,
    spec: TaskSpec,
    hardware: Hardware,
    limit_seconds: float = LIMIT_SECONDS,
) -> dict[str, Any]:
    """Measure the sections ``speed``, ``growth``, ``state``, ``flops`` and ``energy`` of a composed configuration.

    Lengths and batch size come from ``config.measure``; by default they depend on the device. On a CPU one process
    times all lengths and another one measures their memory; on CUDA, or with compiled code, each length has a process
    of its own. Inference and training run sequentially. If a mode fails at a length, its entry has status and reason,
    and longer lengths are not measured. The status is ``timeout`` if the minimum number of steps takes more than
    ``limit_seconds``, measured or predicted from the growth between the two previous lengths. If ``hardware`` uses
    several training processes, nothing is measured and a message gives the reason: a step of a single process does not
    represent their joint step. The inference state is measured on the CPU in this process.
    """
    kind, measure = hardware.device.type, config.measure
    lengths = lengths_of(measure, kind)
    state = measure_state(config, spec, lengths)
    if hardware.strategy != "none":
        say(f"Speed at increasing lengths is not measured: {NOT_DISTRIBUTED}.")
        ending = ("incompatible", NOT_DISTRIBUTED)
        return {
            "speed": [],
            "growth": {},
            "state": state,
            "flops": _unknown_flops(spec, ending),
            "energy": _unknown_energy(spec, ending),
        }
    batch_size = measure.speed_batch_size or BATCH_SIZE[kind]
    found: dict[str, Any] = {"speed": [], "growth": {}, "state": state, "flops": None, "energy": None}
    if measure.flops and not lengths:  # otherwise the process that times the first length counts them
        with torch.random.fork_rng(devices=[]):
            found["flops"] = {**flops_per_token(config, spec), "ceiling_per_second": None}
    if kind == "cuda":
        torch.cuda.empty_cache()
    modes: Sequence[str] = MODES
    # On CUDA, and with compiled code, a length would depend on the caches that the one before it has filled.
    reused = kind == "cpu" and not hardware.compile
    with JobWorkers(reused) as workers, bar(len(lengths), "Measuring speed and memory", unit="lengths") as advance:
        for length in lengths:
            entries = [
                unmeasured(mode, length, batch_size, "timeout", reason)
                for mode in modes
                if (reason := too_slow(found["speed"], mode, length, hardware.device, limit_seconds))
            ]
            job = {
                "config": as_dict(config),
                "spec": asdict(spec),
                "length": length,
                "batch_size": batch_size,
                "modes": [mode for mode in modes if mode not in [entry["mode"] for entry in entries]],
                "limit_seconds": limit_seconds,
                "memory_only": False,
                "flops": measure.flops and length == lengths[0],
                "step_flops": measure.flops,
                "energy": measure.energy and length == lengths[0],
            }
            if job["modes"]:
                answers, ending = workers.run(job, _timeout(job, hardware), KEEP_FREED_MEMORY)
                entries += _completed([answer["speed"] for answer in answers if "speed" in answer], job, ending)
                for section, unknown in (("flops", _unknown_flops), ("energy", _unknown_energy)):
                    if job[section]:
                        answer = [answer[section] for answer in answers if section in answer]
                        found[section] = answer[0] if answer else unknown(spec, ending)
                _fill_in_flops(entries, answers, found["flops"])
            found["speed"] += entries
            if kind == "cpu":
                _fill_in_memory(workers, entries, job, hardware)
            modes = [entry["mode"] for entry in entries if entry["status"] == "ok"]
            advance(1)
    found["speed"].sort(key=lambda entry: (MODES.index(entry["mode"]), entry["length"]))
    found["growth"] = growth(found["speed"])
    return found


def _fill_in_memory(workers: JobWorkers, entries: list[SpeedPoint], job: Mapping[str, Any], hardware: Hardware) -> None:
    """Measure the peak resident memory of the timed modes, in a process whose allocator returns freed memory.

    By default glibc keeps and splits freed blocks, so that resident memory grows with the number of allocations to many
    times the size of the live tensors. With a fixed low threshold every large block is returned to the system when it
    is freed, so that the peak is the size of the live tensors, comparable to allocated bytes on CUDA. Steps are then
    slower; therefore the process that times them keeps freed memory. A peak that cannot be measured stays None.
    """
    timed = {entry["mode"]: entry for entry in entries if entry["status"] == "ok"}
    if not timed:
        return
    extras = dict.fromkeys(("flops", "step_flops", "energy"), False)
    request = {**job, **extras, "modes": list(timed), "memory_only": True}
    answers, _ = workers.run(request, _timeout(request, hardware), RETURN_FREED_MEMORY)
    for answer in answers:
        if "memory" in answer:
            mode, measured = answer["memory"]
            timed[mode].update(measured)


def _fill_in_flops(
    entries: list[SpeedPoint], answers: Sequence[Mapping[str, Any]], flops: Mapping[str, Any] | None
) -> None:
    """Add FLOPs and utilisation to the speed entries of one length."""
    counted: Mapping[str, Any] = next((answer["step_flops"] for answer in answers if "step_flops" in answer), {})
    peak_matmul_flops = flops["ceiling_per_second"] if flops is not None else None
    for entry in entries:
        per_row = counted.get(entry["mode"])
        add_flops(entry, None if per_row is None else per_row * entry["batch_size"], peak_matmul_flops)


def lengths_of(measure: Measure, device: str) -> list[int]:
    """Return the lengths to measure, in tokens: those of ``measure``, by default those of the device type.

    An empty list in ``measure`` means none.
    """
    return sorted(LENGTHS[device] if measure.speed_lengths is None else measure.speed_lengths)


def _completed(entries: list[SpeedPoint], job: Mapping[str, Any], ending: tuple[str, str]) -> list[SpeedPoint]:
    """Return entries for all modes of the job.

    The first mode without an entry was running when the process ended and has the status of ``ending``; the modes after
    it were not tried.
    """
    missing = [mode for mode in job["modes"] if mode not in [entry["mode"] for entry in entries]]
    status, reason = ending
    for mode in missing:
        text = reason if mode == missing[0] else f"not tried, because {missing[0]} ended the process: {reason}"
        entries.append(unmeasured(mode, job["length"], job["batch_size"], status, text))
    return entries


def _unknown_flops(spec: TaskSpec, ending: tuple[str, str]) -> Flops:
    """Return a ``flops`` section without counts, with the reason of ``ending``."""
    return Flops(
        per_token_forward=None,
        per_token_training=None,
        length=spec.train_length,
        route=f"none ({ending[1]})",
        uncounted=[],
        ceiling_per_second=None,
    )


def _unknown_energy(_: TaskSpec, ending: tuple[str, str]) -> Energy:
    """Return an ``energy`` section without a measurement, with the reason of ``ending``."""
    return Energy(joules_per_step=None, route=f"none: {ending[1]}")


def _timeout(job: Mapping[str, Any], hardware: Hardware) -> float:
    """Return the timeout of a worker in seconds; it exceeds the sum of the limits within the worker."""
    measuring = len(job["modes"]) * 3 * job["limit_seconds"]
    extras = START_SECONDS * (bool(job["flops"]) + bool(job["energy"]))
    return START_SECONDS + measuring + extras + (COMPILE_SECONDS if hardware.compile else 0.0)
