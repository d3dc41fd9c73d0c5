"""Energy per step, from NVML on NVIDIA GPUs and from RAPL on CPUs; unknown on other systems."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import torch

from .sections import Energy
from .timing import Step, block

ROOT = Path("/sys/class/powercap")
PACKAGES = "intel-rapl:[0-9]*"


def joule_counter(root: Path = ROOT) -> Callable[[], float] | str:
    """Return a function that reads the joules of all processor packages since now, or the reason why it cannot.

    Package zones are named ``intel-rapl:<n>``, on AMD processors as well. Zones with a second number are part of a
    package, and the zone of the platform contains the packages; neither is counted. Wrap-around of a counter is handled
    if it is read at least once per wrap: with the usual range of 2^18 J, every twenty minutes at 200 W.
    """
    named = (name.parent for name in root.glob(f"{PACKAGES}/name") if name.read_text("ascii").startswith("package"))
    packages = sorted(zone for zone in named if zone.name.count(":") == 1)
    if not packages:
        return f"there is no energy counter of processor packages in {root}"
    try:
        before = [_microjoules(zone, "energy_uj") for zone in packages]
        ranges = [_microjoules(zone, "max_energy_range_uj") for zone in packages]
    except PermissionError as error:
        return f"{error.filename} is not readable by this user"
    except (OSError, ValueError) as error:
        return f"the energy counters of processor packages cannot be read ({error})"
    total = 0

    def read() -> float:
        nonlocal before, total
        now = [_microjoules(zone, "energy_uj") for zone in packages]
        for old, new, most in zip(before, now, ranges, strict=True):
            total += new - old if new >= old else new - old + most
        before = now
        return total / 1e6

    return read


def _microjoules(zone: Path, name: str) -> int:
    """Return the value in µJ of a file of a powercap zone."""
    return int((zone / name).read_text(encoding="ascii"))


ENERGY_SECONDS = 10.0
PAUSE_STEPS = 10


def unknown_energy(reason: str) -> Energy:
    """Return the section without a measurement, with the reason."""
    return {"joules_per_step": None, "route": f"none: {reason}"}


@dataclass(frozen=True)
class Counter:
    """An energy counter: ``read`` returns joules since an arbitrary start, ``name`` names the source."""

    name: str
    read: Callable[[], float]


def measure_energy(step: Step, device: torch.device, counter: Counter, seconds: float = ENERGY_SECONDS) -> Energy:
    """Measure the joules per step of the entire GPU, or of all processors, over at least ``seconds`` of steps.

    Idle power and the power of other processes on the device are included. ``step`` must be warmed up.
    """
    # Blocks end with a synchronisation, so that the host does not enqueue more steps than fit into the window.
    steps, size = 0, PAUSE_STEPS if device.type == "cuda" else 1
    began, before = time.perf_counter(), counter.read()
    while (elapsed := time.perf_counter() - began) < seconds:
        block(step, device, size)
        steps += size
    joules = counter.read() - before
    if joules <= 0:
        return unknown_energy("the energy counter did not increase")
    return {"joules_per_step": joules / steps, "route": f"{counter.name} over {elapsed:.1f} s and {steps} steps"}


def counter_of(device: torch.device) -> Counter | str:
    """Return the energy counter of a device, or the reason why there is none."""
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
        # CUDA and NVML number GPUs differently.
        uuid = str(torch.cuda.get_device_properties(device).uuid)
        handle = pynvml.nvmlDeviceGetHandleByUUID(uuid if uuid.startswith(("GPU-", "MIG-")) else f"GPU-{uuid}")
        pynvml.nvmlDeviceGetTotalEnergyConsumption(handle)
    except pynvml.NVMLError as error:
        return f"NVML: {error}"
    return Counter("NVML total energy", lambda: pynvml.nvmlDeviceGetTotalEnergyConsumption(handle) / 1e3)
