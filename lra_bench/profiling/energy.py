"""Energy of a step, from the counters that NVIDIA cards and some kernels keep; unknown everywhere else."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

from .timing import Step

ROOT = Path("/sys/class/powercap")
PACKAGES = "intel-rapl:[0-9]*"


def joule_counter(root: Path = ROOT) -> Callable[[], float] | str:
    """A function that returns the joules of all packages since its first call, or the reason why there is none.

    Zones of packages are ``intel-rapl:<n>``, on AMD too; those with a second number are parts of one and not counted
    again, nor is the zone of a whole platform. A counter that wraps round is followed, if it is read more often than
    that: at 200 W the usual 2^18 J last for twenty minutes.
    """
    packages = sorted(zone for zone in root.glob(PACKAGES) if zone.name.count(":") == 1 and _is_package(zone))
    if not packages:
        return f"the kernel shows no energy of processor packages in {root}"
    try:
        before = [_microjoules(zone, "energy_uj") for zone in packages]
        ranges = [_microjoules(zone, "max_energy_range_uj") for zone in packages]
    except PermissionError as error:
        return f"{error.filename} may not be read by this user"
    except (OSError, ValueError) as error:
        return f"the energy of processor packages cannot be read ({error})"
    total = 0

    def read() -> float:
        nonlocal before, total
        now = [_microjoules(zone, "energy_uj") for zone in packages]
        for old, new, most in zip(before, now, ranges, strict=True):
            total += new - old if new >= old else new - old + most
        before = now
        return total / 1e6

    return read


def _is_package(zone: Path) -> bool:
    try:
        return (zone / "name").read_text(encoding="ascii").startswith("package")
    except OSError:
        return False


def _microjoules(zone: Path, name: str) -> int:
    return int((zone / name).read_text(encoding="ascii"))


ENERGY_SECONDS = 10.0
PAUSE_STEPS = 10


@dataclass(frozen=True)
class Energy:
    """Joules per step, None where unknown; ``route`` says how it was found or why not."""

    joules_per_step: float | None
    route: str


@dataclass(frozen=True)
class Counter:
    """A counter of energy: ``read`` returns joules drawn since some moment, ``name`` says whose they are."""

    name: str
    read: Callable[[], float]


def measure_energy(step: Step, device: torch.device, counter: Counter, seconds: float = ENERGY_SECONDS) -> Energy:
    """Joules that the whole card, or all processors, drew per step over at least ``seconds`` of steps.

    Idle power is included, and so is whatever else computed there meanwhile. ``step`` must be warmed up.
    """
    steps = 0
    _wait(device)
    began, before = time.perf_counter(), counter.read()
    while (elapsed := time.perf_counter() - began) < seconds:
        step()
        steps += 1
        if steps % PAUSE_STEPS == 0:
            # Without this the host would queue far more steps than the window holds.
            _wait(device)
    _wait(device)
    elapsed = time.perf_counter() - began
    joules = counter.read() - before
    if joules <= 0:
        return Energy(None, "none: the energy counter did not move")
    return Energy(joules / steps, f"{counter.name} over {elapsed:.1f} s and {steps} steps")


def counter_of(device: torch.device) -> Counter | str:
    """The counter of a device's energy, or the reason why there is none."""
    if device.type == "cpu":
        read = joule_counter()
        return read if isinstance(read, str) else Counter("RAPL energy of all processor packages", read)
    if device.type != "cuda":
        return f"no energy counter for a {device.type} device"
    try:
        import pynvml
    except ImportError:
        return "the package nvidia-ml-py is not installed"
    try:
        pynvml.nvmlInit()
        handle = _handle(pynvml, device)
        pynvml.nvmlDeviceGetTotalEnergyConsumption(handle)
    except pynvml.NVMLError as error:
        return f"NVML says: {error}"
    return Counter("NVML total energy", lambda: pynvml.nvmlDeviceGetTotalEnergyConsumption(handle) / 1e3)


def _handle(nvml: Any, device: torch.device) -> Any:
    """The card by its UUID: CUDA's numbering is not NVML's."""
    uuid = str(torch.cuda.get_device_properties(device).uuid)
    return nvml.nvmlDeviceGetHandleByUUID(uuid if uuid.startswith(("GPU-", "MIG-")) else f"GPU-{uuid}")


def _wait(device: torch.device) -> None:
    if device.type == "cuda":
        torch.cuda.synchronize(device)
