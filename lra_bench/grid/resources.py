"""CPU cores and GPUs of each cell, and of each worker when several cells run at once."""

from __future__ import annotations

import os
from collections.abc import Sequence
from dataclasses import dataclass, replace

from lra_bench.config.schema import CellConfig, LauncherOptions
from lra_bench.contracts import UserError
from lra_bench.runtime.hardware import CPU_PROCESSES, HardwareOptions, on_cpu, processes_of, usable_cpus

LAUNCHERS = ("local", "slurm")
OPTIONS_OF = {
    "local": ("workers",),
    "slurm": ("partition", "account", "cpus", "gpus", "memory_gigabytes", "at_once"),
}


@dataclass(frozen=True)
class Allocation:
    """The cores that a cell may use, None for all, and its cards as ``CUDA_VISIBLE_DEVICES`` has them, None for all.

    ``alone`` tells the one share that is the whole machine.
    """

    cores: tuple[int, ...] | None = None
    cards: str | None = None
    alone: bool = True


def with_own_threads(config: CellConfig) -> CellConfig:
    """A configuration whose threads are those of the share of the cores that the launcher gives a cell.

    Raises ``UserError`` where cells at once would have more threads, or cards, than there are.
    """
    launcher, hardware = config.launcher, config.hardware
    if launcher.name == "slurm":
        return _of_cores(config, cores_of(config))
    workers = launcher.workers or 1
    if workers == 1:
        return config
    cores = usable_cpus()
    if workers > cores:
        raise UserError(f"launcher.workers={workers}: this machine has {cores} usable cores; lower it")
    if on_cpu(hardware):
        return _of_cores(config, cores // workers)
    if hardware.strategy != "none" and hardware.processes is None:
        raise UserError(f"launcher.workers={workers}: say how many cards each cell gets; set hardware.processes")
    cards = len(_visible_cards())
    if workers * processes_of(hardware) > cards:
        raise UserError(
            f"launcher.workers={workers}: cells on one card would slow each other, and {workers} cells of "
            f"{processes_of(hardware)} want more than the {cards} there are; lower it"
        )
    return config


def allocations(config: CellConfig) -> list[Allocation]:
    """The share of each worker of the local launcher."""
    workers = config.launcher.workers or 1
    if workers == 1:
        return [Allocation()]
    cores = sorted(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else []
    cards = [] if on_cpu(config.hardware) else _visible_cards()
    own, each = len(cores) // workers, 0 if not cards else processes_of(config.hardware)
    return [
        Allocation(
            cores=tuple(cores[number * own : (number + 1) * own]) or None,
            cards=",".join(cards[number * each : (number + 1) * each]) if cards else None,
            alone=False,
        )
        for number in range(workers)
    ]


def cores_of(config: CellConfig) -> int:
    """The cores that a submitted cell gets: those asked for, else one for each thread."""
    hardware = config.hardware
    return int(config.launcher.cpus or (hardware.threads or 1) * _processes(hardware))


def cards_of(config: CellConfig) -> int:
    """The cards that a submitted cell gets: those asked for, else one for each process.

    Raises ``UserError`` where the options leave it open.
    """
    hardware, asked = config.hardware, config.launcher.gpus
    if hardware.device == "auto":
        raise UserError("hardware=auto: a submitted cell must say what it needs; choose hardware=cpu or hardware=cuda")
    if hardware.device == "cpu":
        return int(asked or 0)
    if hardware.strategy != "none" and not (asked or hardware.processes):
        raise UserError(f"hardware.strategy={hardware.strategy}: say how many cards; set hardware.processes")
    return int(asked or _processes(hardware))


def _processes(hardware: HardwareOptions) -> int:
    """The processes of a cell as far as options tell, without a look at this machine."""
    if hardware.strategy == "none":
        return 1
    return int(hardware.processes or CPU_PROCESSES)


def check_launcher(launcher: LauncherOptions) -> None:
    """Raise ``UserError`` where an option is set that the chosen launcher has no use for."""
    if launcher.name not in LAUNCHERS:
        raise UserError(f"launcher.name={launcher.name}: choose {' or '.join(LAUNCHERS)}")
    for other, names in OPTIONS_OF.items():
        for name in names:
            if launcher.name != other and getattr(launcher, name) is not None:
                raise UserError(
                    f"launcher.{name}={getattr(launcher, name)}: is an option of launcher={other}; leave it out"
                )


def _of_cores(config: CellConfig, cores: int) -> CellConfig:
    """The configuration with threads for so many cores, unless it says how many."""
    hardware = config.hardware
    processes = processes_of(hardware)
    threads = hardware.threads or max(1, cores // processes)
    if threads * processes > cores:
        raise UserError(
            f"hardware.threads={threads}: {processes} x {threads} threads are more than the {cores} cores of a cell; "
            f"lower it, or launcher.workers, or raise launcher.cpus"
        )
    return replace(config, hardware=replace(hardware, threads=threads))


def _visible_cards() -> Sequence[str]:
    """The cards as ``CUDA_VISIBLE_DEVICES`` names them."""
    named = os.environ.get("CUDA_VISIBLE_DEVICES")
    if named:
        return named.split(",")
    import torch

    return [str(number) for number in range(torch.cuda.device_count())]
