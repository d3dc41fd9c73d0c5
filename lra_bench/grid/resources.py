"""CPU and GPU allocation per cell, and per worker if several cells run at the same time."""

from __future__ import annotations

import os
from collections.abc import Sequence
from dataclasses import dataclass, replace

from lra_bench.config.schema import CellConfig, LauncherOptions
from lra_bench.contracts import UserError
from lra_bench.runtime.hardware import CPU_PROCESSES, HardwareOptions, on_cpu, processes_of
from lra_bench.runtime.processor import usable_cpus

LAUNCHERS = ("local", "slurm")
OPTIONS_OF = {
    "local": ("workers", "cells_per_gpu"),
    "slurm": ("partition", "account", "cpus", "gpus", "memory_gigabytes", "at_once"),
}


@dataclass(frozen=True)
class Allocation:
    """The CPU cores and GPUs that a cell may use.

    ``visible_gpus`` is a value of ``CUDA_VISIBLE_DEVICES``. None means all cores or all GPUs. ``whole_machine`` is True
    if only one cell runs at a time.
    """

    cores: tuple[int, ...] | None = None
    visible_gpus: str | None = None
    whole_machine: bool = True


def with_own_threads(config: CellConfig) -> CellConfig:
    """Return the configuration with the number of threads that fits the cores that the launcher allocates to a cell.

    The energy of cells that share a GPU is not measured. Raises ``UserError`` if all workers together need more cores,
    threads or GPUs than are available.
    """
    launcher, hardware = config.launcher, config.hardware
    if launcher.name == "slurm":
        return _with_threads_for(config, cores_of(config))
    workers = launcher.workers or 1
    if workers == 1:
        return config
    cores = usable_cpus()
    if workers > cores:
        raise UserError(f"launcher.workers={workers}: this machine has {cores} usable cores; lower launcher.workers")
    if on_cpu(hardware):
        if launcher.cells_per_gpu is not None:
            raise UserError(f"launcher.cells_per_gpu={launcher.cells_per_gpu}: the cells run on a CPU; leave it out")
        return _with_threads_for(config, cores // workers)
    if hardware.strategy != "none" and hardware.processes is None:
        raise UserError(f"launcher.workers={workers}: the number of GPUs per cell is not set; set hardware.processes")
    shared, processes = launcher.cells_per_gpu or 1, processes_of(hardware)
    if shared > 1 and processes > 1:
        raise UserError(
            f"launcher.cells_per_gpu={shared}: cells of {processes} processes cannot share a GPU; leave it out"
        )
    available, needed = len(_visible_gpus()), -(-workers // shared) * processes
    if needed > available:
        raise UserError(
            f"launcher.workers={workers}: {workers} cells need {needed} GPUs, {available} are available; "
            "lower launcher.workers or raise launcher.cells_per_gpu"
        )
    if shared > 1:
        return replace(config, measure=replace(config.measure, energy=False))
    return config


def allocations(config: CellConfig) -> list[Allocation]:
    """Return the allocation of each worker of the local launcher."""
    workers = config.launcher.workers or 1
    if workers == 1:
        return [Allocation()]
    cores = sorted(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else []
    visible = [] if on_cpu(config.hardware) else _visible_gpus()
    cores_each, gpus_each = len(cores) // workers, 0 if not visible else processes_of(config.hardware)
    first_gpu = [number // (config.launcher.cells_per_gpu or 1) * gpus_each for number in range(workers)]
    return [
        Allocation(
            cores=tuple(cores[number * cores_each : (number + 1) * cores_each]) or None,
            visible_gpus=",".join(visible[first_gpu[number] : first_gpu[number] + gpus_each]) if visible else None,
            whole_machine=False,
        )
        for number in range(workers)
    ]


def cores_of(config: CellConfig) -> int:
    """Return the number of cores of a submitted cell: ``launcher.cpus`` if set, otherwise one per thread."""
    hardware = config.hardware
    return int(config.launcher.cpus or (hardware.threads or 1) * _processes(hardware))


def gpus_of(config: CellConfig) -> int:
    """Return the number of GPUs of a submitted cell: ``launcher.gpus`` if set, otherwise one per process.

    Raises ``UserError`` if the options do not determine the number.
    """
    hardware, requested = config.hardware, config.launcher.gpus
    if hardware.device == "auto":
        raise UserError("hardware=auto: a submitted cell needs an explicit device; set hardware=cpu or hardware=cuda")
    if hardware.device == "cpu":
        return int(requested or 0)
    if hardware.strategy != "none" and not (requested or hardware.processes):
        raise UserError(f"hardware.strategy={hardware.strategy}: the number of GPUs is not set; set hardware.processes")
    return int(requested or _processes(hardware))


def _processes(hardware: HardwareOptions) -> int:
    """Return the number of processes of a cell according to its options, independent of this machine."""
    if hardware.strategy == "none":
        return 1
    return int(hardware.processes or CPU_PROCESSES)


def check_launcher(launcher: LauncherOptions) -> None:
    """Raise ``UserError`` if the launcher is unknown, an option is of another launcher, or a signal comes too early."""
    if launcher.name not in LAUNCHERS:
        raise UserError(f"launcher.name={launcher.name}: choose {' or '.join(LAUNCHERS)}")
    if launcher.signal_seconds >= 60 * launcher.minutes:
        raise UserError(
            f"launcher.signal_seconds={launcher.signal_seconds}: is not below the time limit of a job "
            f"(launcher.minutes={launcher.minutes}); lower launcher.signal_seconds or raise launcher.minutes"
        )
    for other, names in OPTIONS_OF.items():
        for name in names:
            if launcher.name != other and getattr(launcher, name) is not None:
                raise UserError(
                    f"launcher.{name}={getattr(launcher, name)}: is an option of launcher={other}; leave it out"
                )


def _with_threads_for(config: CellConfig, cores: int) -> CellConfig:
    """Return the configuration with one thread per core and process, unless ``hardware.threads`` is set.

    Raises ``UserError`` if the processes have more threads than ``cores``.
    """
    hardware = config.hardware
    processes = processes_of(hardware)
    threads = hardware.threads or max(1, cores // processes)
    if threads * processes > cores:
        raise UserError(
            f"hardware.threads={threads}: {processes} x {threads} threads exceed the {cores} cores of a cell; "
            f"lower hardware.threads or launcher.workers, or raise launcher.cpus"
        )
    return replace(config, hardware=replace(hardware, threads=threads))


def _visible_gpus() -> Sequence[str]:
    """Return the visible GPUs by the names that ``CUDA_VISIBLE_DEVICES`` uses for them."""
    named = os.environ.get("CUDA_VISIBLE_DEVICES")
    if named:
        return named.split(",")
    import torch

    return [str(number) for number in range(torch.cuda.device_count())]
