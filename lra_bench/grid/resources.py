"""CPU and GPU allocation per cell, and per worker if several cells run at the same time."""

from __future__ import annotations

import os
from dataclasses import dataclass, replace

from lra_bench.config.schema import CellConfig
from lra_bench.contracts import UserError
from lra_bench.runtime.hardware import CPU_PROCESSES, HardwareOptions, on_cpu, processes_of, visible_gpus
from lra_bench.runtime.processor import usable_cpus


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

    The energy of cells that share a GPU is not measured.
    """
    launcher, hardware = config.launcher, config.hardware
    if launcher.name != "slurm" and (launcher.workers or 1) == 1:
        return config
    if launcher.name == "slurm" or on_cpu(hardware):
        threads = hardware.threads or max(1, cores_per_cell(config) // processes_of(hardware))
        return replace(config, hardware=replace(hardware, threads=threads))
    if (launcher.cells_per_gpu or 1) > 1:
        return replace(config, measure=replace(config.measure, energy=False))
    return config


def cores_per_cell(config: CellConfig) -> int:
    """Return the number of cores that the launcher allocates to a cell."""
    return cores_of(config) if config.launcher.name == "slurm" else usable_cpus() // (config.launcher.workers or 1)


def allocations(config: CellConfig) -> list[Allocation]:
    """Return the allocation of each worker of the local launcher."""
    workers = config.launcher.workers or 1
    if workers == 1:
        return [Allocation()]
    cores = sorted(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else []
    visible = [] if on_cpu(config.hardware) else visible_gpus()
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
