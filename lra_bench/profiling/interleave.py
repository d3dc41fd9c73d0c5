"""Time models at increasing lengths, each in its own process, several models at one length interleaved."""

from __future__ import annotations

import statistics
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from functools import partial
from typing import Any

from lra_bench.config.serialization import as_dict
from lra_bench.runtime.memory import KEEP_FREED_MEMORY, RETURN_FREED_MEMORY
from lra_bench.runtime.processor import usable_cpus
from lra_bench.runtime.subprocesses import WorkerEnded, WorkerFailed, WorkerProcess

from .scaling import too_large, too_slow
from .sections import LARGEST, SpeedPoint, retimed, unmeasured
from .timing import WarmUp, alternate, is_slow, summary
from .types import MODES, ComparisonModel, Measured, Setting

MODULE = "lra_bench.profiling.worker"
VISITS: Mapping[str, int] = {"cpu": 7, "cuda": 1}
"""Number of visits to each length by device type; other processes on a shared machine disturb only some of them."""
SLOW_VISITS = 2
"""Slow steps (``timing.is_slow``) are timed only in every second visit, among them the first and the last."""
START_SECONDS = 200.0  # generous, because other processes can slow down the start of a process tenfold
COMPILE_SECONDS = 600.0
ANSWER_SECONDS = 240.0
"""Longest time to count the FLOPs of a model, to measure its energy, or to multiply matrices."""
# The allocator returns freed memory to the system immediately, so that it does not count in the peak. Processes that
# measure memory run at the same time, so waiting threads must not occupy a core.
MEMORY_VARIABLES = {**RETURN_FREED_MEMORY, "OMP_WAIT_POLICY": "passive"}

_Work = Callable[[Measured], object]
"""A function that does something for one mode of one model and may raise ``WorkerFailed``."""


@dataclass
class WorkerPool:
    """Worker processes: ``timing`` by model, ``memory`` by model and mode. Use it as a context manager.

    Starting a process takes longer than most timing rounds, so processes are reused for all lengths and visits.
    """

    timing: dict[str, WorkerProcess] = field(default_factory=dict)
    memory: dict[tuple[str, str], WorkerProcess] = field(default_factory=dict)

    def __enter__(self) -> WorkerPool:
        return self

    def __exit__(self, *_: object) -> None:
        self.end()

    def end(self) -> None:
        """End all processes."""
        self.end_memory_processes()
        while self.timing:
            self.timing.popitem()[1].end()

    def end_memory_processes(self) -> None:
        """End the processes that measure memory, after the last length."""
        while self.memory:
            self.memory.popitem()[1].end()


def first_visits(
    candidates: Sequence[ComparisonModel],
    settings: Iterable[Setting],
    processes: WorkerPool,
    report: Callable[[int, str], None],
) -> Iterator[Interleaving]:
    """Make the first visit to the length of each setting, in ascending order, and yield it.

    A mode that fails at a length, or is predicted to exceed a limit, is not measured at longer ones. If no mode is
    left, nothing is run, and ``visits`` stays 0.
    """
    modes = {candidate.name: list(MODES) for candidate in candidates}
    entries: dict[str, list[SpeedPoint]] = {candidate.name: [] for candidate in candidates}
    for setting in settings:
        visit, skipped = Interleaving(setting, processes, report), list[Measured]()
        for candidate in candidates:
            for mode in tuple(modes[candidate.name]):
                if why := _predicted_failure(entries[candidate.name], mode, setting):
                    entry = unmeasured(mode, setting.length, setting.first_batch, *why, setting.policy)
                    skipped.append(Measured(candidate, entry))
                    modes[candidate.name].remove(mode)
        visit.found = skipped + (visit.run(candidates, modes) if any(modes.values()) else [])
        yield visit
        modes = {name: [] for name in modes}
        for one in visit.found:
            entries[one.candidate.name].append(one.entry)
            if one.entry["status"] == "ok":
                modes[one.candidate.name].append(one.entry["mode"])


def _predicted_failure(entries: Sequence[SpeedPoint], mode: str, setting: Setting) -> tuple[str, str] | None:
    """Return status and reason if a length is predicted to exceed the limits of time or memory, otherwise None."""
    device = setting.hardware.device
    if slow := too_slow(entries, mode, setting.length, device, setting.limit_seconds):
        return "timeout", slow
    if device.type == "cpu" and (large := too_large(entries, mode, setting.length, setting.memory_limit_bytes)):
        return "out_of_memory", large
    return None


class Interleaving:
    """Time several models at one length interleaved in the workers of ``processes``, and start missing workers.

    A mode is a kind of step, ``train`` or ``inference``; modes are measured sequentially. A visit is one call of
    ``run`` or ``revisit``, which times all modes of all models; between two visits the other lengths are visited. In a
    visit each mode is timed in rounds, which alternate between the models. In a round a model runs one block of
    consecutive steps, with a duration of about ``timing.ROUND_SECONDS`` but at least one step. The rounds of all visits
    together fill the timing window of a mode: the least number of steps and seconds that ``timing`` requires.

    ``report(done, doing)`` is called with the number of modes just measured and a description of the current work.
    """

    def __init__(self, setting: Setting, processes: WorkerPool, report: Callable[[int, str], None]) -> None:
        self.setting, self.processes, self.report = setting, processes, report
        self.visits = 0
        self.found: list[Measured] = []
        self.ended: dict[str, tuple[str, WorkerFailed]] = {}
        self.flops: dict[str, Mapping[str, Any]] = {}

    def run(self, candidates: Sequence[ComparisonModel], modes: Mapping[str, Sequence[str]]) -> list[Measured]:
        """Make the first visit: time the modes, count FLOPs if the setting requests it, and measure memory on a CPU.

        Args:
            candidates: The models.
            modes: The modes to measure by name of the model. A model without modes is not started.

        Returns:
            One result per model and mode. The entry of a mode that fails has status and reason.
        """
        self.visits = 1
        self._start([candidate for candidate in candidates if modes[candidate.name]], self.setting.flops)
        for mode in dict.fromkeys(mode for several in modes.values() for mode in several):
            initial = [self._initial(candidate, mode) for candidate in candidates if mode in modes[candidate.name]]
            if self.setting.consecutive:
                for one in initial:
                    self._guard(one, self._measure)
                self.found += initial
            else:
                self.found += self._mode(initial, self._warm_up, self._finish)
        if self.setting.hardware.device.type == "cpu":
            self._measure_memory([one for one in self.found if one.entry["status"] == "ok"])
        return self.found

    def revisit(self) -> None:
        """Time the models in another visit and add the rounds; a mode that fails now keeps its previous results.

        Slow steps are skipped in every second visit: a visit of a mode begins with an untimed step, and if it were
        divided among all visits, the window of a slow mode would have only one or two timed steps per visit. The next
        visit makes up for the skipped rounds, because it fills the window up to the fraction of visits made so far.
        """
        with_slow, device = self.visits % SLOW_VISITS == 0, self.setting.hardware.device
        self.visits += 1
        timed = [
            one
            for one in self.found
            if one.entry["status"] == "ok" and one.warm and (with_slow or not is_slow(one.warm.step_seconds, device))
        ]
        if not timed:
            return
        self._start(list({one.candidate.name: one.candidate for one in timed}.values()), counting=False)
        for mode in dict.fromkeys(one.entry["mode"] for one in timed):
            before = [one for one in timed if one.entry["mode"] == mode]
            after = self._mode([replace(one) for one in before], self._resume, self._release)
            for one, updated in zip(before, after, strict=True):
                if updated.entry["status"] == "ok":
                    one.rounds, one.entry = updated.rounds, updated.entry

    def _job(self, candidate: ComparisonModel) -> dict[str, Any]:
        """Return the job of a worker, which it receives before any command."""
        setting = self.setting
        return {
            "config": as_dict(candidate.config),
            "spec": asdict(setting.spec),
            "batch": setting.batch,
            "attention": candidate.attention,
            "memory_limit_bytes": setting.memory_limit_bytes,
        }

    def _start(self, candidates: Sequence[ComparisonModel], counting: bool) -> None:
        """Start all workers at the same time and build their models, counting FLOPs if ``counting``.

        No model is timed meanwhile. In the last visit, workers of models that are not timed at this length are ended.
        """
        # A model that is not timed at this length may be timed at a shorter one. Lengths are visited in ascending
        # order, so only after the last visit to the shorter lengths its worker is not needed any more.
        if self.visits == VISITS[self.setting.hardware.device.type]:
            for unneeded in self.processes.timing.keys() - {candidate.name for candidate in candidates}:
                self.processes.timing.pop(unneeded).end()
        for candidate in candidates:
            if candidate.name not in self.processes.timing:
                self.report(0, f"{self.setting.length:,} tokens, starting {candidate.name}")
                # KEEP_FREED_MEMORY: the allocator keeps freed memory, so that steps are not slowed by page faults.
                self.processes.timing[candidate.name] = WorkerProcess(MODULE, self._job(candidate), KEEP_FREED_MEMORY)
            self.processes.timing[candidate.name].send("build", length=self.setting.length, flops=counting)
        timeout = START_SECONDS * (1 + len(candidates) / 4)
        for candidate in candidates:
            self.report(0, f"{self.setting.length:,} tokens, waiting for {candidate.name} to be built")
            try:
                counted = _receive(self.processes.timing, candidate.name, timeout)["flops"]
                self.flops.setdefault(candidate.name, counted)
            except WorkerFailed as failure:
                self._record_failure(candidate.name, "", failure)

    def _mode(self, several: Sequence[Measured], prepare: _Work, conclude: _Work) -> list[Measured]:
        """Measure one mode of all models: prepare each sequentially, time all interleaved, then conclude each."""
        mode = several[0].entry["mode"]
        found = {one.candidate.name: one for one in several}
        for name, one in found.items():
            self.report(0, f"{self.setting.length:,} tokens, {mode}, warming up {name}")
            self._guard(one, prepare)
        warm = {name: one.warm for name, one in found.items() if one.warm and one.entry["status"] == "ok"}

        def timed_block(name: str, steps: int) -> list[float]:
            self.report(0, f"{self.setting.length:,} tokens, {mode}, timing {name}")
            durations: list[float] = []
            timeout = START_SECONDS + 10 * (steps + 1) * warm[name].step_seconds
            request = partial(self._request, name, timeout, "time_block", steps=steps)
            self._guard(found[name], lambda one: durations.extend(request()["seconds"]))
            return durations

        device = self.setting.hardware.device
        share, earlier = self.visits / VISITS[device.type], {name: found[name].rounds for name in warm}
        blocks = {name: partial(timed_block, name) for name in warm}
        for name, durations in alternate(blocks, warm, device, share, earlier).items():
            one = found[name]
            if one.entry["status"] == "ok":
                one.rounds = durations
                self._guard(one, conclude)
        self.report(len(several), "")
        return list(several)

    def _initial(self, candidate: ComparisonModel, mode: str) -> Measured:
        """Return the entry before the mode is measured, with status and reason if its worker has already ended."""
        status, reason = "ok", ""
        if candidate.name in self.ended:
            where, failure = self.ended[candidate.name]
            status, reason = failure.status, failure.reason
            if where:
                reason = f"not tried, because {where} ended the process: {reason}"
        entry = unmeasured(mode, self.setting.length, self.setting.first_batch, status, reason, self.setting.policy)
        return Measured(candidate, entry, flops_per_row=self.flops.get(candidate.name, {}).get(mode))

    def _guard(self, one: Measured, work: _Work) -> None:
        """Call ``work`` if the mode has not failed yet; a failure is stored as status and reason of its entry."""
        if one.entry["status"] != "ok":
            return
        mode, name = one.entry["mode"], one.candidate.name
        try:
            work(one)
        except WorkerFailed as failure:
            details = (one.entry["batch_size"], failure.status, failure.reason, self.setting.policy)
            one.entry = unmeasured(mode, self.setting.length, *details)
            self._record_failure(name, mode, failure)

    def _first(self, one: Measured, command: str) -> dict[str, Any]:
        """Run the first steps of a mode; raises ``WorkerFailed`` if its timing window would exceed the limit."""
        limit_seconds = self.setting.limit_seconds
        timeout = (self._first_timeout + 3 * limit_seconds) * (4 if self.setting.batch == LARGEST else 1)
        arguments = {"mode": one.entry["mode"], "limit_seconds": limit_seconds}
        return self._request(one.candidate.name, timeout, command, **arguments)

    def _measure(self, one: Measured) -> None:
        """Warm up and time a mode of a single model."""
        one.entry = self._first(one, "measure")["entry"]

    def _warm_up(self, one: Measured) -> None:
        """Warm up a mode."""
        answer = self._first(one, "warm_up")
        one.entry["batch_size"], one.stopped_by = answer["batch_size"], answer["stopped_by"]
        one.warm = WarmUp(answer["seconds"], answer["step_seconds"])

    def _finish(self, one: Measured) -> None:
        """Store the speed entry of a mode after its first visit."""
        timeout = START_SECONDS + 20 * statistics.median(one.round_medians)
        arguments = {"mode": one.entry["mode"], "policy": self.setting.policy}
        one.entry = self._request(one.candidate.name, timeout, "finish", **arguments)["entry"]

    def _resume(self, one: Measured) -> None:
        """Prepare a mode that was timed in an earlier visit."""
        assert one.warm is not None
        step_seconds = one.warm.step_seconds
        arguments = {"mode": one.entry["mode"], "batch_size": one.entry["batch_size"], "step_seconds": step_seconds}
        self._request(one.candidate.name, self._first_timeout + 30 * step_seconds, "resume", **arguments)

    def _release(self, one: Measured) -> None:
        """Release the memory of a mode and update its times after a later visit."""
        assert one.warm is not None
        self._request(one.candidate.name, START_SECONDS, "release")
        one.entry = retimed(one.entry, summary(one.rounds, one.warm))

    @property
    def _first_timeout(self) -> float:
        """Seconds that the first step of a mode may take at most, in addition to its expected duration."""
        return START_SECONDS + (COMPILE_SECONDS if self.setting.hardware.compile else 0.0)

    def _measure_memory(self, timed: Sequence[Measured]) -> None:
        """Measure the peak resident memory of the timed modes, each in its own process unless ``consecutive``.

        As many processes as there are usable cores work at the same time, at least two. Other processes do not change
        the peak memory of a process, but earlier allocations of the same process do, by fragmentation: after training,
        a forward pass took up to a quarter more. Hence there is a process per model and mode, which is reused at the
        next length. A peak that cannot be measured stays None.
        """
        several: dict[tuple[str, str], list[Measured]] = {}
        for one in timed:
            mode = "" if self.setting.consecutive else one.entry["mode"]
            several.setdefault((one.candidate.name, mode), []).append(one)
        waiting, running, workers = deque(several), deque[tuple[str, str]](), self.processes.memory
        while waiting or running:
            while waiting and len(running) < max(2, usable_cpus()):
                name = waiting.popleft()
                if name not in workers:
                    workers[name] = WorkerProcess(MODULE, self._job(several[name][0].candidate), MEMORY_VARIABLES)
                workers[name].send("build", length=self.setting.length, flops=False)
                for one in several[name]:
                    batch_size = one.entry["batch_size"]
                    workers[name].send("measure_peak_memory", mode=one.entry["mode"], batch_size=batch_size)
                running.append(name)
            name = running.popleft()
            self.report(0, f"{self.setting.length:,} tokens, measuring the memory of {', '.join(name)}")
            try:
                _receive(workers, name, START_SECONDS)
                for one in several[name]:
                    timeout = START_SECONDS + 60 * (one.entry["median_seconds"] or 0.0)
                    one.entry.update(_receive(workers, name, timeout)["memory"])
            except WorkerFailed:
                # A pending answer must not be mistaken for an answer at the next length.
                if name in workers:
                    workers.pop(name).end()

    def answer(self, name: str, command: str, **arguments: Any) -> dict[str, Any]:
        """Return the answer of the worker of a model to a command, or ``reason``: why there is none."""
        try:
            return self._request(name, ANSWER_SECONDS, command, **arguments)
        except WorkerFailed as failure:
            self._record_failure(name, command.replace("_", " "), failure)
            return {"reason": failure.reason}

    def _request(self, name: str, timeout: float, command: str, **arguments: Any) -> dict[str, Any]:
        """Send a command to the worker of a model and return its answer; raises ``WorkerFailed``."""
        if name not in self.processes.timing:
            raise self.ended[name][1]
        self.processes.timing[name].send(command, **arguments)
        return _receive(self.processes.timing, name, timeout)

    def _record_failure(self, name: str, where: str, failure: WorkerFailed) -> None:
        """Record in ``ended`` that a model cannot be measured, because its worker has ended or cannot build it.

        ``where`` is the measurement that failed, empty if the model cannot be built.
        """
        if not where or name not in self.processes.timing:
            self.ended[name] = (where, failure)


def _receive(workers: dict[Any, WorkerProcess], name: object, timeout: float) -> dict[str, Any]:
    """Return the next answer of a worker; raises ``WorkerFailed``, and removes a worker that has ended."""
    try:
        return workers[name].receive(timeout)
    except WorkerEnded:
        workers.pop(name).end()
        raise
