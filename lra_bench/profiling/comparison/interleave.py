"""Time several models at one length in turns, each in a process of its own."""

from __future__ import annotations

import statistics
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, replace
from typing import Any

from lra_bench.config.serialization import as_dict
from lra_bench.profiling.speed_point import LARGEST, retimed, unmeasured
from lra_bench.profiling.timing import WarmUp, alternate, fewest_seconds, is_slow, summary
from lra_bench.profiling.worker_pool import Ended, WorkerPool, WorkerProcess
from lra_bench.runtime.hardware import usable_cpus
from lra_bench.runtime.memory import KEEPING_ALL, KEEPING_NOTHING

from .types import ComparisonModel, Measured, Setting

MODULE = "lra_bench.profiling.comparison.worker"
VISITS: Mapping[str, int] = {"cpu": 7, "cuda": 1}
"""How many times all take turns, minutes apart: who shares a machine may be busy for some of them."""
SLOW_VISITS = 2
"""Slow steps are taken at every so many of them, the first and the last included."""
START_SECONDS = 60.0
COMPILE_SECONDS = 600.0
# Processes that measure memory run at the same time: waiting threads must not occupy a core.
MEMORY_VARIABLES = {**KEEPING_NOTHING, "OMP_WAIT_POLICY": "passive"}


class _Failure(Exception):
    """A command to a worker process failed."""

    def __init__(self, status: str, reason: str) -> None:
        super().__init__(reason)
        self.status, self.reason = status, reason


_Work = Callable[[Measured], object]
"""Something that is done for one mode of one model, and may fail."""


class Interleaving:
    """Time the models of ``processes`` in turns, and start processes that are missing.

    ``tell(done, doing)`` is called with the number of modes just measured and a description of the current work.
    """

    def __init__(self, setting: Setting, processes: WorkerPool, tell: Callable[[int, str], None]) -> None:
        self.setting, self.processes, self.tell = setting, processes, tell
        self.visits = 0
        self.found: list[Measured] = []
        self.ended: dict[str, tuple[str, _Failure]] = {}
        self.flops: dict[str, Mapping[str, Any]] = {}
        self.energy: dict[str, Any] = {}
        self.peak_matmul_flops: float | None = None

    def run(self, candidates: Sequence[ComparisonModel], modes: Mapping[str, Sequence[str]]) -> list[Measured]:
        """Measure the modes of each model, by its name; a mode that fails has status and reason.

        Where turns are taken at several times this is the first of them.
        """
        self.visits = 1
        self._start([candidate for candidate in candidates if modes[candidate.name]], self.setting.flops)
        if self.setting.peak_matmul_flops and self.processes.timing:
            self._measure_peak_matmul()
        for mode in dict.fromkeys(mode for several in modes.values() for mode in several):
            blank = [self._blank(candidate, mode) for candidate in candidates if mode in modes[candidate.name]]
            self.found += self._mode(blank, self._warm_up, self._finish)
        if self.setting.energy:
            self._measure_energy()
        if self.setting.hardware.device.type == "cpu":
            self._measure_memory([one for one in self.found if one.entry["status"] == "ok"])
        return self.found

    def again(self) -> None:
        """Take turns at another time too, and add them to what was found; what fails now keeps what it had.

        Slow steps are spared every second time: the one that is not counted costs as much as half of those that are.
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
            now = self._mode([replace(one) for one in before], self._resume, self._rest)
            for one, same in zip(before, now, strict=True):
                if same.entry["status"] == "ok":
                    one.rounds, one.entry = same.rounds, same.entry

    def _job(self, candidate: ComparisonModel) -> dict[str, Any]:
        setting = self.setting
        return {
            "config": as_dict(candidate.config),
            "spec": asdict(setting.spec),
            "batch": setting.batch,
            "attention": candidate.attention,
            "memory_limit_bytes": setting.memory_limit_bytes,
        }

    def _start(self, candidates: Sequence[ComparisonModel], counting: bool) -> None:
        """All at once: while they load, and count FLOPs where they are to, nobody is timed."""
        if self.visits == VISITS[self.setting.hardware.device.type]:  # else they have turns to come at shorter lengths
            for gone in self.processes.timing.keys() - {candidate.name for candidate in candidates}:
                self.processes.timing.pop(gone).end()
        for candidate in candidates:
            if candidate.name not in self.processes.timing:
                self.tell(0, f"{self.setting.length:,} tokens, starting {candidate.name}")
                self.processes.timing[candidate.name] = WorkerProcess(MODULE, self._job(candidate), KEEPING_ALL)
            self.processes.timing[candidate.name].tell("build", length=self.setting.length, flops=counting)
        patience = START_SECONDS * (1 + len(candidates) / 4)
        for candidate in candidates:
            self.tell(0, f"{self.setting.length:,} tokens, waiting for {candidate.name} to be built")
            try:
                counted = _hear(self.processes.timing, candidate.name, patience)["flops"]
                self.flops.setdefault(candidate.name, counted)
            except _Failure as failure:
                self._drop(candidate.name, "", failure)

    def _mode(self, several: Sequence[Measured], prepare: _Work, conclude: _Work) -> list[Measured]:
        """One mode of all models: each is prepared, one after the other, then turns, then each is concluded."""
        mode = several[0].entry["mode"]
        found = {one.candidate.name: one for one in several}
        for name, one in found.items():
            self.tell(0, f"{self.setting.length:,} tokens, {mode}, warming up {name}")
            self._guard(one, prepare)
        warm = {name: one.warm for name, one in found.items() if one.warm and one.entry["status"] == "ok"}

        def turn(name: str) -> Callable[[int], list[float]]:
            def take(steps: int) -> list[float]:
                self.tell(0, f"{self.setting.length:,} tokens, {mode}, timing {name}")
                durations: list[float] = []
                patience = START_SECONDS + 10 * (steps + 1) * warm[name].step_seconds
                self._guard(
                    found[name],
                    lambda one: durations.extend(self._ask(name, patience, "turn", steps=steps)["seconds"]),
                )
                return durations

            return take

        device = self.setting.hardware.device
        earlier = {name: found[name].rounds for name in warm}
        rounds = alternate(
            {name: turn(name) for name in warm}, warm, device, self.visits / VISITS[device.type], earlier
        )
        for name, durations in rounds.items():
            one = found[name]
            if one.entry["status"] == "ok":
                one.rounds = durations
                self._guard(one, conclude)
        self.tell(len(several), "")
        return list(several)

    def _blank(self, candidate: ComparisonModel, mode: str) -> Measured:
        """What stands until the mode is measured; with status and reason where its process has ended before."""
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
        """Do something for a model that is still in; what goes wrong becomes status and reason of its entry."""
        if one.entry["status"] != "ok":
            return
        mode, name = one.entry["mode"], one.candidate.name
        try:
            work(one)
        except _Failure as failure:
            known = (one.entry["batch_size"], failure.status, failure.reason, self.setting.policy)
            one.entry = unmeasured(mode, self.setting.length, *known)
            self._drop(name, mode, failure)

    def _warm_up(self, one: Measured) -> None:
        setting = self.setting
        patience = self._first_patience + 3 * setting.limit_seconds
        if setting.batch == LARGEST:
            patience *= 4
        answer = self._ask(
            one.candidate.name, patience, "warm_up", mode=one.entry["mode"], limit_seconds=setting.limit_seconds
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
        patience = START_SECONDS + 20 * statistics.median(one.round_medians)
        known = {"mode": one.entry["mode"], "policy": self.setting.policy}
        one.entry = self._ask(one.candidate.name, patience, "finish", **known)["entry"]

    def _resume(self, one: Measured) -> None:
        assert one.warm is not None
        step_seconds = one.warm.step_seconds
        known = {"mode": one.entry["mode"], "batch_size": one.entry["batch_size"], "step_seconds": step_seconds}
        self._ask(one.candidate.name, self._first_patience + 30 * step_seconds, "resume", **known)

    def _rest(self, one: Measured) -> None:
        assert one.warm is not None
        self._ask(one.candidate.name, START_SECONDS, "rest")
        one.entry = retimed(one.entry, summary(one.rounds, one.warm))

    @property
    def _first_patience(self) -> float:
        return START_SECONDS + (COMPILE_SECONDS if self.setting.hardware.compile else 0.0)

    def _measure_peak_matmul(self) -> None:
        name = next(iter(self.processes.timing))
        self.tell(0, "measuring the fastest matrix product")
        try:
            self.peak_matmul_flops = self._ask(name, START_SECONDS, "peak_matmul_flops")["flops_per_second"]
        except _Failure as failure:
            self._drop(name, "the matrix product", failure)

    def _measure_energy(self) -> None:
        for name in list(self.processes.timing):
            self.tell(0, f"measuring the energy of {name}")
            try:
                self.energy[name] = self._ask(name, 4 * START_SECONDS, "energy")["energy"]
            except _Failure as failure:
                self._drop(name, "energy", failure)

    def _measure_memory(self, timed: Sequence[Measured]) -> None:
        """Resident memory of what was timed, each mode in a process of its own, as many at once as there are cores.

        What is alive does not depend on who computes beside it, but where it lies does on what was there before: among
        holes that training had left a forward pass took up to a quarter more. A peak that cannot be had stays None.
        """
        waiting = deque(((one.candidate.name, one.entry["mode"]), one) for one in timed)
        running, memory_processes = deque[tuple[tuple[str, str], Measured]](), self.processes.memory
        while waiting or running:
            while waiting and len(running) < max(2, usable_cpus()):
                name, one = waiting.popleft()
                if name not in memory_processes:
                    memory_processes[name] = WorkerProcess(MODULE, self._job(one.candidate), MEMORY_VARIABLES)
                memory_processes[name].tell("build", length=self.setting.length, flops=False)
                memory_processes[name].tell(
                    "measure_peak_memory", mode=one.entry["mode"], batch_size=one.entry["batch_size"]
                )
                running.append((name, one))
            name, one = running.popleft()
            self.tell(0, f"{self.setting.length:,} tokens, measuring the memory of {', '.join(name)}")
            try:
                _hear(memory_processes, name, START_SECONDS)
                patience = START_SECONDS + 60 * (one.entry["median_seconds"] or 0.0)
                one.entry.update(_hear(memory_processes, name, patience)["memory"])
            except _Failure:
                # Whatever it has not answered yet is not to be taken for an answer at the next length.
                if name in memory_processes:
                    memory_processes.pop(name).end()

    def _ask(self, name: str, patience: float, command: str, **arguments: Any) -> dict[str, Any]:
        if name not in self.processes.timing:
            raise self.ended[name][1]
        self.processes.timing[name].tell(command, **arguments)
        return _hear(self.processes.timing, name, patience)

    def _drop(self, name: str, where: str, failure: _Failure) -> None:
        """Remember why a process is gone, or of no more use because its model cannot be built."""
        if not where and name in self.processes.timing:
            self.processes.timing.pop(name).end()
        if name not in self.processes.timing:
            self.ended[name] = (where, failure)


def _hear(lives: dict[Any, WorkerProcess], name: object, patience: float) -> dict[str, Any]:
    """The answer of one of the processes, which is ended where none comes."""
    try:
        answer = lives[name].hear(patience)
    except Ended as ended:
        lives.pop(name).end()
        raise _Failure(ended.status, ended.reason) from ended
    if "failed" in answer:
        raise _Failure(*answer["failed"])
    return answer
