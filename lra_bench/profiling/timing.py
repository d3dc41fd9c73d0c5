"""How long one step takes: one rule for warm-up and window, on CUDA by events, elsewhere by the host's clock."""

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
WARM_UP_SECONDS = 2.0
FIRST_STEPS = 3
STEPS = 20
SECONDS = 2.0
SLOW_STEP_SECONDS = 0.5
SLOW_STEPS = 5
ROUNDS = 28
SLOW_ROUNDS = 10  # of slow steps, where others take turns: the fast one of five is chance
ROUND_SECONDS = 0.075


@dataclass(frozen=True)
class WarmUp:
    """What the warm-up took, and the duration of its later steps: compiled, with optimizer state in place."""

    seconds: float
    step_seconds: float


@dataclass(frozen=True)
class Timing:
    """Durations of ``n`` steps; ``short_run`` where a slow CPU step made do with fewer than the rule's twenty."""

    n: int
    median_seconds: float
    p10_seconds: float
    p90_seconds: float
    warmup_seconds: float
    short_run: bool


def measure(step: Step, device: torch.device, limit_seconds: float | None = None) -> Timing:
    """Warm ``step`` up and time it.

    Warm-up: ten steps or two seconds, whichever ends first. Window: at least twenty steps and two seconds; on a
    CPU five steps do where one takes more than half a second. Raises ``TooSlow`` after the warm-up where the fewest
    steps would exceed ``limit_seconds``.
    """
    return time_steps(step, device, warm_up(step, device, limit_seconds=limit_seconds), limit_seconds)


def warm_up(
    step: Step,
    device: torch.device,
    compiled: bool = False,
    limit_seconds: float | None = None,
    seconds: float | None = None,
) -> WarmUp:
    """Run ``step`` ten times or for ``seconds``, by default two, whichever ends first.

    At least as often as ``first_steps`` says; and a second time where the window would exceed ``limit_seconds``, for a
    first step that fetches gigabytes of memory takes three times as long as those after it.
    """
    durations: list[float] = []
    while len(durations) < first_steps(device, compiled) or (
        len(durations) < WARM_UP_STEPS and sum(durations) < (seconds or WARM_UP_SECONDS)
    ):
        durations += _host_block(step, device)
    if limit_seconds and len(durations) == 1 and durations[0] <= limit_seconds < fewest_seconds(durations[0], device):
        durations += _host_block(step, device)
    return WarmUp(sum(durations), statistics.median(durations[len(durations) // 2 :]))


def first_steps(device: torch.device, compiled: bool) -> int:
    """How many steps at least go before those that count: more where one may compile or start the device."""
    return FIRST_STEPS if compiled or device.type == "cuda" else 1


def time_steps(
    step: Step, device: torch.device, warm: WarmUp, limit_seconds: float | None = None, seconds: float | None = None
) -> Timing:
    """Time ``step``, warmed up before, in a window of at least ``seconds``, by default two.

    Raises ``TooSlow`` as ``measure`` does.
    """
    planned = _planned_steps(warm.step_seconds, device, seconds)
    if limit_seconds is not None and fewest_seconds(warm.step_seconds, device) > limit_seconds:
        raise TooSlow(
            f"a step takes {warm.step_seconds:.3g} s; timing {planned} would exceed the limit of {limit_seconds:g} s"
        )
    durations: list[float] = []
    with collector_off():
        while not _enough(durations, device, seconds=seconds):
            durations += block(step, device, planned)
            planned = max(1, planned // 4)
    return summary([durations], warm)


def alternate(
    blocks: Mapping[str, Callable[[int], list[float]]],
    warm: Mapping[str, WarmUp],
    device: torch.device,
    share: float = 1.0,
    earlier: Mapping[str, Sequence[list[float]]] = MappingProxyType({}),
) -> dict[str, list[list[float]]]:
    """Durations of steps by name and round, those of ``earlier`` first, until there is ``share`` of what the rule asks.

    ``blocks`` run so many steps and return their durations; an empty list means that this one has ended, and it is left
    out from then on. A window is cut into many short rounds, of a single step where it is long, and all are spread over
    the same time: what disturbs the machine for seconds meets all alike. The order turns round from round to round.
    """
    rounds = {name: [*earlier.get(name, ())] for name in blocks}
    slow = {name: is_slow(warm[name].step_seconds, device) for name in blocks}
    whole = {name: math.ceil(share * (SLOW_ROUNDS if slow[name] else ROUNDS)) for name in blocks}
    turns = {name: max(1, whole[name] - len(rounds[name])) for name in blocks}
    most = max(turns.values(), default=1)
    sizes = {name: max(1, round(ROUND_SECONDS / max(warm[name].step_seconds, 1e-6))) for name in blocks}
    lacking = list(blocks)
    for number in itertools.count():
        lacking = [
            name
            for name in lacking
            if len(rounds[name]) < whole[name] or not _enough(list(itertools.chain(*rounds[name])), device, share)
        ]
        if not lacking:
            break
        for name in lacking[:: -1 if number % 2 else 1]:
            if (number + 1) * turns[name] // most == number * turns[name] // most:
                continue
            if durations := blocks[name](sizes[name]):
                rounds[name].append(durations)
            else:
                lacking.remove(name)
    return rounds


def is_slow(step_seconds: float, device: torch.device) -> bool:
    """Whether steps are so slow that few of them do, as on a CPU alone."""
    return device.type != "cuda" and step_seconds > SLOW_STEP_SECONDS


def fewest_seconds(step_seconds: float, device: torch.device) -> float:
    """Seconds that the shortest window takes which the rule permits for steps of ``step_seconds``."""
    return _planned_steps(step_seconds, device) * step_seconds


@contextmanager
def collector_off() -> Iterator[None]:
    """Collect garbage now and not again inside the context, where it would fall into single steps."""
    gc.collect()
    enabled = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if enabled:
            gc.enable()


def _planned_steps(step_seconds: float, device: torch.device, seconds: float | None = None) -> int:
    if is_slow(step_seconds, device):
        return SLOW_STEPS
    return max(STEPS, math.ceil(1.05 * (seconds or SECONDS) / max(step_seconds, 1e-6)))


def _enough(durations: list[float], device: torch.device, share: float = 1.0, seconds: float | None = None) -> bool:
    n = len(durations)
    if n >= share * STEPS and sum(durations) >= share * (seconds or SECONDS):
        return True
    return n >= share * SLOW_STEPS and is_slow(statistics.median(durations), device)


def block(step: Step, device: torch.device, n: int) -> list[float]:
    """Seconds of each of ``n`` steps that follow one another."""
    return _event_block(step, device, n) if device.type == "cuda" else _host_block(step, device, n)


def _host_block(step: Step, device: torch.device, n: int = 1) -> list[float]:
    marks = [time.perf_counter()]
    for _ in range(n):
        step()
        if device.type == "cuda":
            torch.cuda.synchronize(device)
        marks.append(time.perf_counter())
    return [after - before for before, after in itertools.pairwise(marks)]


def _event_block(step: Step, device: torch.device, n: int) -> list[float]:
    """From event to event, so that a host slower than its device is part of the duration; one wait at the end."""
    stream = torch.cuda.current_stream(device)
    events = [torch.cuda.Event(enable_timing=True) for _ in range(n + 1)]
    events[0].record(stream)
    for event in events[1:]:
        step()
        event.record(stream)
    torch.cuda.synchronize(device)
    return [before.elapsed_time(after) / 1e3 for before, after in itertools.pairwise(events)]


def summary(rounds: Iterable[Sequence[float]], warm: WarmUp) -> Timing:
    """The figures of all steps of all rounds."""
    durations = list(itertools.chain(*rounds))
    p10, median, p90 = (float(value) for value in numpy.percentile(durations, [10, 50, 90]))
    return Timing(len(durations), median, p10, p90, warm.seconds, short_run=len(durations) < STEPS)
