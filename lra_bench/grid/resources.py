"""The cores and GPUs that a cell uses."""

from __future__ import annotations

from dataclasses import replace

from lra_bench.config.schema import CellConfig
from lra_bench.contracts import UserError
from lra_bench.runtime.hardware import CPU_PROCESSES, HardwareOptions, processes_of


def with_threads(config: CellConfig, cores: int) -> CellConfig:
    """Return the configuration with the number of threads of a cell that has ``cores``, unless it is set.

    Raises ``UserError`` if the threads of all processes exceed the cores.
    """
    hardware, processes = config.hardware, processes_of(config.hardware)
    threads = hardware.threads or max(1, cores // processes)
    if threads * processes > cores:
        raise UserError(
            f"hardware.threads={threads}: {processes} x {threads} threads exceed the {cores} cores of a cell; "
            f"lower hardware.threads, or change the options of the launcher"
        )
    return replace(config, hardware=replace(hardware, threads=threads))


def cores_of(config: CellConfig) -> int:
    """Return the number of cores of a cell that may run on another machine: one per thread."""
    return (config.hardware.threads or 1) * _processes(config.hardware)


def gpus_of(config: CellConfig) -> int:
    """Return the number of GPUs of a cell that may run on another machine: one per process on CUDA.

    Raises ``UserError`` if the options do not determine the number.
    """
    hardware = config.hardware
    if hardware.device == "auto":
        raise UserError(
            "hardware=auto: a cell that runs elsewhere needs an explicit device; set hardware=cpu or hardware=cuda"
        )
    if hardware.device == "cpu":
        return 0
    if hardware.strategy != "none" and not hardware.processes:
        raise UserError(f"hardware.strategy={hardware.strategy}: the number of GPUs is not set; set hardware.processes")
    return _processes(hardware)


def _processes(hardware: HardwareOptions) -> int:
    """Return the number of processes of a cell according to its options, independent of this machine."""
    if hardware.strategy == "none":
        return 1
    return int(hardware.processes or CPU_PROCESSES)
