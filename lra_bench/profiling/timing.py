"""Time a step: rules for warm-up and timing window; CUDA events on CUDA, the host's clock on other devices."""

from __future__ import annotations

import gc
import itertools
import math
import statistics
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from types import MappingProxyType

import numpy
import torch

from lra_bench.runtime.limits import TooSlow

Step = Callable[[], object]

WARM_UP_STEPS = 10
WARM_UP_SECONDS = {"cpu": 0.5, "cuda": 2.0}
FIRST_STEPS = 2
FIRST_STEPS_OF_DEVICE = 3
STEPS = 20
SECONDS = 2.0
SLOW_STEP_SECONDS = 0.5
SLOW_STEPS = 5
ROUNDS = 28
SLOW_ROUNDS = 10  # rounds of slow steps if models are interleaved: the minimum of only five steps would be too noisy
ROUND_SECONDS = 0.075


@dataclass(frozen=True)
class WarmUp:
    """Seconds of the warm-up, and the median step time of its second half, with compiled code and optimizer state."""

    seconds: float
    step_seconds: float


@dataclass(frozen=True)
class Timing:
    """Durations of ``n`` steps; ``short_run`` is true if ``n`` is less than 20, which only slow CPU steps allow."""

    n: int
    median_seconds: float
    p10_seconds: float
    p90_seconds: float
    warmup_seconds: float
    short_run: bool


def measure(
    step: Step,
    device: torch.device,
    limit_seconds: float | None = None,
    compiled: bool = False,
    seconds: float | None = None,
) -> Timing:
    """Warm up ``step`` and time consecutive steps.

    The timing window has at least twenty steps and ``seconds``, by default two; on a CPU, five steps suffice if one
    takes more than half a second. Raises as ``warm_up`` does.
    """
    warm = warm_up(step, device, compiled, limit_seconds, seconds)
    planned, durations = _planned_steps(warm.step_seconds, device, seconds), list[float]()
    with collector_off():
        while not _enough(durations, device, seconds=seconds):
            durations += block(step, device, planned)
            planned = max(1, planned // 4)
    return summary([durations], warm)


def warm_up(
    step: Step,
    device: torch.device,
    compiled: bool = False,
    limit_seconds: float | None = None,
    seconds: float | None = None,
) -> WarmUp:
    """Run ``step`` ten times or for ``seconds``, by default ``WARM_UP_SECONDS``, whichever ends first.

    At least ``first_steps(device, compiled)`` steps are run, because a first step that allocates gigabytes of memory
    takes three times as long as later ones. They end early only if the first step exceeds ``limit_seconds`` alone.
    Raises ``TooSlow`` if timing the minimum number of steps would take more than ``limit_seconds``.
    """
    durations: list[float] = []
    seconds = seconds or WARM_UP_SECONDS[device.type]
    while len(durations) < first_steps(device, compiled) or (
        len(durations) < WARM_UP_STEPS and sum(durations) < seconds
    ):
        durations += _host_block(step, device)
        if limit_seconds and len(durations) == 1 and durations[0] > limit_seconds:
            break
    step_seconds = statistics.median(durations[len(durations) // 2 :])
    if limit_seconds is not None and (needed := fewest_seconds(step_seconds, device)) > limit_seconds:
        raise TooSlow(
            f"a step takes {step_seconds:.3g} s; timing it would take {needed:.0f} s, the limit is {limit_seconds:g} s"
        )
    return WarmUp(sum(durations), step_seconds)


def first_steps(device: torch.device, compiled: bool) -> int:
    """Return the minimum number of warm-up steps: more if a step may be compiled or initialise the device."""
    return FIRST_STEPS_OF_DEVICE if compiled or device.type == "cuda" else FIRST_STEPS


def alternate(
    blocks: Mapping[str, Callable[[int], list[float]]],
    warm: Mapping[str, WarmUp],
    device: torch.device,
    share: float = 1.0,
    earlier: Mapping[str, Sequence[list[float]]] = MappingProxyType({}),
) -> dict[str, list[list[float]]]:
    """Time several steps interleaved, in many short rounds, such that disturbances of the machine affect all alike.

    A round has a duration of about ``ROUND_SECONDS``, or a single step if a step takes longer. Rounds of all names are
    spread evenly over the same period, and their order is reversed from round to round.

    Args:
        blocks: By name, a function that runs n steps and returns their durations in seconds; an empty list means that
            it failed, after which it is not called again.
        warm: The warm-ups, by name.
        device: The device of the steps.
        share: The fraction of the timing window to reach, if there are several visits.
        earlier: Rounds of earlier visits, by name.

    Returns:
        By name, the durations of steps in each round, those of ``earlier`` first.
    """
    rounds = {name: [*earlier.get(name, ())] for name in blocks}
    slow = {name: is_slow(warm[name].step_seconds, device) for name in blocks}
    required = {name: math.ceil(share * (SLOW_ROUNDS if slow[name] else ROUNDS)) for name in blocks}
    missing = {name: max(1, required[name] - len(rounds[name])) for name in blocks}
    most_missing = max(missing.values(), default=1)
    sizes = {name: max(1, round(ROUND_SECONDS / max(warm[name].step_seconds, 1e-6))) for name in blocks}
    incomplete = list(blocks)
    for number in itertools.count():
        incomplete = [
            name
            for name in incomplete
            if len(rounds[name]) < required[name] or not _enough(list(itertools.chain(*rounds[name])), device, share)
        ]
        if not incomplete:
            break
        for name in incomplete[:: -1 if number % 2 else 1]:
            if (number + 1) * missing[name] // most_missing == number * missing[name] // most_missing:
                continue
            if durations := blocks[name](sizes[name]):
                rounds[name].append(durations)
            else:
                incomplete.remove(name)
    return rounds


def is_slow(step_seconds: float, device: torch.device) -> bool:
    """Return whether steps are so slow that ``SLOW_STEPS`` of them suffice; never on CUDA."""
    return device.type != "cuda" and step_seconds > SLOW_STEP_SECONDS


def fewest_seconds(step_seconds: float, device: torch.device) -> float:
    """Return the duration in seconds of the shortest permitted timing window for steps of ``step_seconds``."""
    return _planned_steps(step_seconds, device) * step_seconds


@contextmanager
def collector_off() -> Iterator[None]:
    """Collect garbage now and disable collection inside the context, in which it would delay single steps."""
    gc.collect()
    enabled = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if enabled:
            gc.enable()


def _planned_steps(step_seconds: float, device: torch.device, seconds: float | None = None) -> int:
    """Return the number of steps that a timing window needs."""
    if is_slow(step_seconds, device):
        return SLOW_STEPS
    return max(STEPS, math.ceil(1.05 * (seconds or SECONDS) / max(step_seconds, 1e-6)))


def _enough(durations: list[float], device: torch.device, share: float = 1.0, seconds: float | None = None) -> bool:
    """Return whether ``durations`` fill ``share`` of a timing window."""
    n = len(durations)
    if n >= share * STEPS and sum(durations) >= share * (seconds or SECONDS):
        return True
    return n >= share * SLOW_STEPS and is_slow(statistics.median(durations), device)


def block(step: Step, device: torch.device, n: int) -> list[float]:
    """Run ``n`` steps and return the seconds of each: between CUDA events on CUDA, otherwise by the host's clock.

    On CUDA there is one synchronisation at the end, and durations include the time of a host that is slower.
    """
    if device.type != "cuda":
        return _host_block(step, device, n)
    stream = torch.cuda.current_stream(device)
    events = [torch.cuda.Event(enable_timing=True) for _ in range(n + 1)]
    events[0].record(stream)
    for event in events[1:]:
        step()
        event.record(stream)
    torch.cuda.synchronize(device)
    return [before.elapsed_time(after) / 1e3 for before, after in itertools.pairwise(events)]


def _host_block(step: Step, device: torch.device, n: int = 1) -> list[float]:
    """Run ``n`` steps and return the seconds of each by the host's clock, with a synchronisation after each step."""
    marks = [time.perf_counter()]
    for _ in range(n):
        step()
        if device.type == "cuda":
            torch.cuda.synchronize(device)
        marks.append(time.perf_counter())
    return [after - before for before, after in itertools.pairwise(marks)]


def summary(rounds: Iterable[Sequence[float]], warm: WarmUp) -> Timing:
    """Compute the median and percentiles over the steps of all rounds."""
    durations = list(itertools.chain(*rounds))
    p10, median, p90 = (float(value) for value in numpy.percentile(durations, [10, 50, 90]))
    return Timing(len(durations), median, p10, p90, warm.seconds, short_run=len(durations) < STEPS)
