"""Time several models at one length interleaved, each in its own process."""

from __future__ import annotations

import statistics
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, replace
from typing import Any

from lra_bench.config.serialization import as_dict
from lra_bench.profiling.speed_point import LARGEST, retimed, unmeasured
from lra_bench.profiling.timing import WarmUp, alternate, fewest_seconds, is_slow, summary
from lra_bench.profiling.worker_pool import WorkerEnded, WorkerPool, WorkerProcess
from lra_bench.runtime.memory import KEEP_FREED_MEMORY, RETURN_FREED_MEMORY
from lra_bench.runtime.processor import usable_cpus

from .types import ComparisonModel, Measured, Setting

MODULE = "lra_bench.profiling.comparison.worker"
VISITS: Mapping[str, int] = {"cpu": 7, "cuda": 1}
"""Number of visits to each length by device type.

Visits are minutes apart, so that other processes on a shared machine disturb only some of them.
"""
SLOW_VISITS = 2
"""Slow steps (``timing.is_slow``) are timed only in every second visit: the first, the third and so on.

The number of visits is odd, so the last visit is one of them.
"""
START_SECONDS = 60.0
COMPILE_SECONDS = 600.0
# The allocator returns freed memory to the system immediately, so that it does not count in the peak. Processes that
# measure memory run at the same time, so waiting threads must not occupy a core.
MEMORY_VARIABLES = {**RETURN_FREED_MEMORY, "OMP_WAIT_POLICY": "passive"}


class _Failure(Exception):
    """Raised when a command to a worker process failed, or the process has ended."""

    def __init__(self, status: str, reason: str) -> None:
        super().__init__(reason)
        self.status, self.reason = status, reason


_Work = Callable[[Measured], object]
"""A function that does something for one mode of one model and may raise ``_Failure``."""


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
        self.ended: dict[str, tuple[str, _Failure]] = {}
        self.flops: dict[str, Mapping[str, Any]] = {}
        self.energy: dict[str, Any] = {}
        self.peak_matmul_flops: float | None = None

    def run(self, candidates: Sequence[ComparisonModel], modes: Mapping[str, Sequence[str]]) -> list[Measured]:
        """Make the first visit: time the modes and measure FLOPs, energy and memory as the setting requests.

        Args:
            candidates: The models.
            modes: The modes to measure by name of the model. A model without modes is not started.

        Returns:
            One result per model and mode. The entry of a mode that fails has status and reason.
        """
        self.visits = 1
        self._start([candidate for candidate in candidates if modes[candidate.name]], self.setting.flops)
        if self.setting.peak_matmul_flops and self.processes.timing:
            self._measure_peak_matmul()
        for mode in dict.fromkeys(mode for several in modes.values() for mode in several):
            initial = [self._initial(candidate, mode) for candidate in candidates if mode in modes[candidate.name]]
            self.found += self._mode(initial, self._warm_up, self._finish)
        if self.setting.energy:
            self._measure_energy()
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
            except _Failure as failure:
                self._record_failure(candidate.name, "", failure)

    def _mode(self, several: Sequence[Measured], prepare: _Work, conclude: _Work) -> list[Measured]:
        """Measure one mode of all models: prepare each sequentially, time all interleaved, then conclude each."""
        mode = several[0].entry["mode"]
        found = {one.candidate.name: one for one in several}
        for name, one in found.items():
            self.report(0, f"{self.setting.length:,} tokens, {mode}, warming up {name}")
            self._guard(one, prepare)
        warm = {name: one.warm for name, one in found.items() if one.warm and one.entry["status"] == "ok"}

        def timed_block(name: str) -> Callable[[int], list[float]]:
            def run(steps: int) -> list[float]:
                self.report(0, f"{self.setting.length:,} tokens, {mode}, timing {name}")
                durations: list[float] = []
                timeout = START_SECONDS + 10 * (steps + 1) * warm[name].step_seconds
                self._guard(
                    found[name],
                    lambda one: durations.extend(self._request(name, timeout, "time_block", steps=steps)["seconds"]),
                )
                return durations

            return run

        device = self.setting.hardware.device
        earlier = {name: found[name].rounds for name in warm}
        rounds = alternate(
            {name: timed_block(name) for name in warm}, warm, device, self.visits / VISITS[device.type], earlier
        )
        for name, durations in rounds.items():
            one = found[name]
            if one.entry["status"] == "ok":
                one.rounds = durations
                self._guard(one, conclude)
        self.report(len(several), "")
        return list(several)

    def _initial(self, candidate: ComparisonModel, mode: str) -> Measured:
        """Return the entry before the mode is measured, with status and reason if its worker has already ended."""
        batch = 1 if self.setting.batch == LARGEST else int(self.setting.batch)
        status, reason = "ok", ""
        if candidate.name in self.ended:
            where, failure = self.ended[candidate.name]
            status, reason = failure.status, failure.reason
            if where:
                reason = f"not tried, because {where} ended the process: {reason}"
        entry = unmeasured(mode, self.setting.length, batch, status, reason, self.setting.policy)
        return Measured(candidate, entry, flops_per_row=self.flops.get(candidate.name, {}).get(mode))

    def _guard(self, one: Measured, work: _Work) -> None:
        """Call ``work`` if the mode has not failed yet; a failure is stored as status and reason of its entry."""
        if one.entry["status"] != "ok":
            return
        mode, name = one.entry["mode"], one.candidate.name
        try:
            work(one)
        except _Failure as failure:
            details = (one.entry["batch_size"], failure.status, failure.reason, self.setting.policy)
            one.entry = unmeasured(mode, self.setting.length, *details)
            self._record_failure(name, mode, failure)

    def _warm_up(self, one: Measured) -> None:
        """Warm up a mode; raises ``_Failure`` if its timing window would exceed the limit."""
        setting = self.setting
        timeout = self._first_timeout + 3 * setting.limit_seconds
        if setting.batch == LARGEST:
            timeout *= 4
        answer = self._request(
            one.candidate.name, timeout, "warm_up", mode=one.entry["mode"], limit_seconds=setting.limit_seconds
        )
        one.entry["batch_size"], one.stopped_by = answer["batch_size"], answer["stopped_by"]
        one.warm = WarmUp(answer["seconds"], answer["step_seconds"])
        step_seconds = one.warm.step_seconds
        if (needed := fewest_seconds(step_seconds, setting.hardware.device)) > setting.limit_seconds:
            raise _Failure(
                "timeout",
                f"a step takes {step_seconds:.3g} s; timing it would take {needed:.0f} s, the limit is "
                f"{setting.limit_seconds:g} s",
            )

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

    def _measure_peak_matmul(self) -> None:
        """Measure the matrix-product throughput in the first worker."""
        name = next(iter(self.processes.timing))
        self.report(0, "measuring the fastest matrix product")
        try:
            self.peak_matmul_flops = self._request(name, START_SECONDS, "peak_matmul_flops")["flops_per_second"]
        except _Failure as failure:
            self._record_failure(name, "the matrix product", failure)

    def _measure_energy(self) -> None:
        """Measure the energy of each model, sequentially."""
        for name in list(self.processes.timing):
            self.report(0, f"measuring the energy of {name}")
            try:
                self.energy[name] = self._request(name, 4 * START_SECONDS, "energy")["energy"]
            except _Failure as failure:
                self._record_failure(name, "energy", failure)

    def _measure_memory(self, timed: Sequence[Measured]) -> None:
        """Measure the peak resident memory of the timed modes, each in its own process.

        As many processes as there are usable cores work at the same time, at least two. Other processes do not change
        the peak memory of a process, but earlier allocations of the same process do, by fragmentation: after training,
        a forward pass took up to a quarter more. Hence there is a process per model and mode, which is reused at the
        next length. A peak that cannot be measured stays None.
        """
        waiting = deque(((one.candidate.name, one.entry["mode"]), one) for one in timed)
        running, memory_processes = deque[tuple[tuple[str, str], Measured]](), self.processes.memory
        while waiting or running:
            while waiting and len(running) < max(2, usable_cpus()):
                name, one = waiting.popleft()
                if name not in memory_processes:
                    memory_processes[name] = WorkerProcess(MODULE, self._job(one.candidate), MEMORY_VARIABLES)
                memory_processes[name].send("build", length=self.setting.length, flops=False)
                memory_processes[name].send(
                    "measure_peak_memory", mode=one.entry["mode"], batch_size=one.entry["batch_size"]
                )
                running.append((name, one))
            name, one = running.popleft()
            self.report(0, f"{self.setting.length:,} tokens, measuring the memory of {', '.join(name)}")
            try:
                _receive(memory_processes, name, START_SECONDS)
                timeout = START_SECONDS + 60 * (one.entry["median_seconds"] or 0.0)
                one.entry.update(_receive(memory_processes, name, timeout)["memory"])
            except _Failure:
                # A pending answer must not be mistaken for an answer at the next length.
                if name in memory_processes:
                    memory_processes.pop(name).end()

    def _request(self, name: str, timeout: float, command: str, **arguments: Any) -> dict[str, Any]:
        """Send a command to the worker of a model and return its answer; raises ``_Failure``."""
        if name not in self.processes.timing:
            raise self.ended[name][1]
        self.processes.timing[name].send(command, **arguments)
        return _receive(self.processes.timing, name, timeout)

    def _record_failure(self, name: str, where: str, failure: _Failure) -> None:
        """Record in ``ended`` that the worker of a model is no longer available, with the failure.

        A worker that failed a command but still runs is not recorded, except if its model cannot be built: it is then
        ended first. ``where`` is the measurement that failed, empty if the model cannot be built.
        """
        if not where and name in self.processes.timing:
            self.processes.timing.pop(name).end()
        if name not in self.processes.timing:
            self.ended[name] = (where, failure)


def _receive(workers: dict[Any, WorkerProcess], name: object, timeout: float) -> dict[str, Any]:
    """Return the next answer of a worker; a worker that has ended or exceeds ``timeout`` seconds is removed.

    Raises ``_Failure`` if the worker has ended or its command failed.
    """
    try:
        answer = workers[name].receive(timeout)
    except WorkerEnded as ended:
        workers.pop(name).end()
        raise _Failure(ended.status, ended.reason) from ended
    if "failed" in answer:
        raise _Failure(*answer["failed"])
    return answer
