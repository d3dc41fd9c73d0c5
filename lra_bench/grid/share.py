"""What of a machine each cell gets when several run at once: cores and cards of its own."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from lra_bench.contracts import UserError
from lra_bench.hardware import on_cpu, processes_of, usable_cpus


@dataclass(frozen=True)
class Share:
    """The cores that a cell may use, None for all, and its cards as ``CUDA_VISIBLE_DEVICES`` has them, None for all.

    ``alone`` tells the one share that is the whole machine.
    """

    cores: tuple[int, ...] | None = None
    cards: str | None = None
    alone: bool = True


def with_own_threads(config: Mapping[str, Any]) -> dict[str, Any]:
    """A configuration whose threads are those of the share of the cores that the launcher gives a cell.

    Raises ``UserError`` where cells at once would have more threads, or cards, than there are.
    """
    launcher, hardware = config["launcher"], config["hardware"]
    if launcher["name"] == "slurm":
        return _of_cores(config, launcher["cpus"]) if launcher["cpus"] else dict(config)
    workers = launcher["workers"] or 1
    if workers == 1:
        return dict(config)
    cores = usable_cpus()
    if workers > cores:
        raise UserError(f"launcher.workers={workers}: this machine has {cores} usable cores; lower it")
    if on_cpu(hardware):
        return _of_cores(config, cores // workers)
    if hardware["strategy"] != "none" and hardware["processes"] is None:
        raise UserError(f"launcher.workers={workers}: say how many cards each cell gets; set hardware.processes")
    cards = len(_visible_cards())
    if workers * processes_of(hardware) > cards:
        raise UserError(
            f"launcher.workers={workers}: cells on one card would slow each other, and {workers} cells of "
            f"{processes_of(hardware)} want more than the {cards} there are; lower it"
        )
    return dict(config)


def shares(config: Mapping[str, Any]) -> list[Share]:
    """The share of each worker of the local launcher."""
    workers = config["launcher"]["workers"] or 1
    if workers == 1:
        return [Share()]
    cores = sorted(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else []
    cards = [] if on_cpu(config["hardware"]) else _visible_cards()
    own, each = len(cores) // workers, 0 if not cards else processes_of(config["hardware"])
    return [
        Share(
            cores=tuple(cores[number * own : (number + 1) * own]) or None,
            cards=",".join(cards[number * each : (number + 1) * each]) if cards else None,
            alone=False,
        )
        for number in range(workers)
    ]


def _of_cores(config: Mapping[str, Any], cores: int) -> dict[str, Any]:
    """The configuration with threads for so many cores, unless it says how many."""
    hardware = config["hardware"]
    processes = processes_of(hardware)
    threads = hardware["threads"] or max(1, cores // processes)
    if threads * processes > cores:
        raise UserError(
            f"hardware.threads={threads}: {processes} x {threads} threads are more than the {cores} cores of a cell; "
            f"lower it, or launcher.workers, or raise launcher.cpus"
        )
    return {**config, "hardware": {**hardware, "threads": threads}}


def _visible_cards() -> Sequence[str]:
    """The cards as ``CUDA_VISIBLE_DEVICES`` names them."""
    named = os.environ.get("CUDA_VISIBLE_DEVICES")
    if named:
        return named.split(",")
    import torch

    return [str(number) for number in range(torch.cuda.device_count())]
