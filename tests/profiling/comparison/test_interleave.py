"""Interleaved timing of models at one length: the order of commands, results, and failures of single workers."""

import dataclasses
import io
import itertools
import threading
import time
import weakref
import zlib
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch

from lra_bench.config.serialization import as_dict
from lra_bench.profiling import interleave, timing, worker
from lra_bench.profiling.attention_backend import attention_backend, forced
from lra_bench.profiling.bench import Bench
from lra_bench.profiling.interleave import Interleaving, WorkerPool
from lra_bench.profiling.types import MODES, ComparisonModel, Measured, Setting
from lra_bench.profiling.worker import largest_batch, wait_for_idle_threads
from lra_bench.records.status import status_of
from lra_bench.runtime.hardware import resolve
from lra_bench.runtime.memory import PeakMemory
from lra_bench.runtime.processor import usable_cpus
from lra_bench.runtime.subprocesses import WorkerEnded, WorkerProcess
from tests.profiling.test_profile import config, hardware
from tests.support import toy_networks as toy
from tests.support.in_process_workers import InProcess

MODEL_NAMES = ("Attention", "LinearAttention")


def candidate(network: str, attention: str | None = None, **options: Any) -> ComparisonModel:
    return ComparisonModel(attention or network, network, config(network, **options), attention)


def setting(**changes: Any) -> Setting:
    default = Setting(
        spec=toy.spec(),
        length=64,
        batch=2,
        policy="fixed",
        hardware=hardware(),
        limit_seconds=30.0,
        flops=True,
    )
    return dataclasses.replace(default, **changes)


@contextmanager
def measuring(
    candidates: list[ComparisonModel], modes: tuple[str, ...] = MODES, **changes: Any
) -> Iterator[tuple[Interleaving, list[Measured]]]:
    with WorkerPool() as processes:
        interleaving = Interleaving(setting(**changes), processes, lambda done, doing: None)
        yield interleaving, interleaving.run(candidates, {each.name: list(modes) for each in candidates})


def measure(*arguments: Any, **changes: Any) -> tuple[Interleaving, list[Measured]]:
    with measuring(*arguments, **changes) as (interleaving, found):
        return interleaving, found


def test_models_are_built_then_warmed_up_then_timed_in_alternating_order(in_process: list) -> None:
    names = ["Attention", "LinearAttention", "math"]
    _, found = measure(
        [candidate("Attention"), candidate("LinearAttention"), candidate("Attention", "math")], ("train",)
    )
    expected = [(name, command) for command in ("build", "warm_up") for name in names]
    visit = -(-timing.ROUNDS // interleave.VISITS["cpu"])
    for number in range(visit):
        expected += [(name, "time_block") for name in (reversed(names) if number % 2 else names)]
    assert in_process[: len(expected)] == expected
    remaining = in_process[len(expected) :]
    assert [command for name, command in remaining if name == "math"][-3:] == ["finish", "build", "measure_peak_memory"]
    assert [one.entry["status"] for one in found] == ["ok"] * 3
    assert all(len(one.round_medians) >= visit for one in found)


@pytest.mark.parametrize("visits", [1, 7])
def test_processes_are_reused_at_the_next_length(
    in_process: list, monkeypatch: pytest.MonkeyPatch, visits: int
) -> None:
    """Processes of models that are not timed there are kept only if shorter lengths are visited again."""
    monkeypatch.setattr(interleave, "VISITS", {"cpu": visits})
    both = [candidate("Attention"), candidate("LinearAttention")]
    with WorkerPool() as processes:
        before = Interleaving(setting(length=64), processes, lambda done, doing: None)
        before.run(both, {name: ["train"] for name in MODEL_NAMES})
        first = dict(processes.timing), dict(processes.memory)
        assert set(first[0]) == set(MODEL_NAMES) and set(first[1]) == {(name, "train") for name in MODEL_NAMES}
        interleaving = Interleaving(setting(length=128), processes, lambda done, doing: None)
        (one,) = interleaving.run(both, {"Attention": [], "LinearAttention": ["train"]})
        kept = {"LinearAttention"} if visits == 1 else set(MODEL_NAMES)
        assert processes.timing == {name: first[0][name] for name in kept}
        assert processes.memory == first[1]
        processes.end_memory_processes()
        assert not processes.memory and processes.timing
    assert one.entry["length"] == 128 and one.entry["status"] == "ok"
    assert one.entry["tokens_per_second"] == pytest.approx(2 * 128 / one.entry["median_seconds"])
    assert one.flops_per_row == interleaving.flops["LinearAttention"]["train"]


def test_later_visits_add_rounds(in_process: list, monkeypatch: pytest.MonkeyPatch) -> None:
    visits, readings = interleave.VISITS["cpu"], itertools.count()
    monkeypatch.setattr(timing.time, "perf_counter", lambda: next(readings) / 1000)  # every step takes a millisecond
    with measuring([candidate("Attention"), candidate("LinearAttention")]) as (interleaving, found):
        for visit in range(2, visits + 1):
            first = [dataclasses.replace(one) for one in found]
            in_process.clear()
            interleaving.revisit()
            assert {command for _, command in in_process} == {"build", "resume", "time_block", "release"}
            for one, before in zip(interleaving.found, first, strict=True):
                assert one.rounds[: len(before.rounds)] == before.rounds
                assert len(one.rounds) >= timing.ROUNDS * visit / visits > len(before.rounds) - 1
                assert one.entry["n"] == sum(map(len, one.rounds)) > before.entry["n"]
                previous = dict(before.entry)
                same = {name for name, value in one.entry.items() if value == previous[name]}
                assert {"peak_resident_growth_bytes", "warmup_seconds", "attention_backend", "batch_size"} <= same
    assert all(one.entry["n"] >= timing.STEPS and len(one.rounds) >= timing.ROUNDS for one in found)


def test_slow_steps_are_timed_in_every_second_visit(in_process: list, monkeypatch: pytest.MonkeyPatch) -> None:
    """All models have enough rounds after the last visit, and processes that are not timed are kept."""
    visits = interleave.VISITS["cpu"]
    with measuring([candidate("Attention"), candidate("LinearAttention")], ("train",)) as (interleaving, (slow, fast)):
        slow.warm = timing.WarmUp(1.0, 2 * timing.SLOW_STEP_SECONDS)
        processes = dict(interleaving.processes.timing)
        for visit in range(2, visits + 1):
            before = len(slow.rounds), len(fast.rounds)
            in_process.clear()
            interleaving.revisit()
            assert (len(slow.rounds) > before[0]) == (("Attention", "build") in in_process) == (visit in (3, 5, 7))
            assert len(fast.rounds) > before[1] and interleaving.processes.timing == processes
    assert len(slow.rounds) >= timing.SLOW_ROUNDS
    with measuring([candidate("Attention")], ("train",)) as (interleaving, (slow,)):
        slow.warm = timing.WarmUp(1.0, 2 * timing.SLOW_STEP_SECONDS)
        in_process.clear()
        interleaving.revisit()
        assert not in_process, "models that are not timed must not be built"


def test_mode_that_fails_in_a_later_visit_keeps_its_results(in_process: list, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(self: worker.TimedModel, steps: int) -> dict:
        raise torch.OutOfMemoryError("no room")

    with measuring([candidate("LinearAttention")], ("train",)) as (interleaving, (one,)):
        entry, rounds = dict(one.entry), one.rounds
        with monkeypatch.context() as patched:
            patched.setattr(worker.TimedModel, "time_block", full)
            interleaving.revisit()
        assert one.entry == entry and one.rounds == rounds
        interleaving.revisit()
        assert one.entry["status"] == "ok" and len(one.rounds) > len(rounds)


def test_process_that_ends_in_a_later_visit_keeps_the_results_of_all_modes(
    in_process: list, monkeypatch: pytest.MonkeyPatch
) -> None:
    receive = InProcess.receive

    def failing(self: InProcess, timeout: float) -> dict[str, Any]:
        if in_process[-1] == ("Attention", "time_block"):
            raise WorkerEnded("out_of_memory", "killed")
        return receive(self, timeout)

    with measuring([candidate("Attention"), candidate("LinearAttention")]) as (interleaving, found):
        before = [dataclasses.replace(one) for one in found]
        with monkeypatch.context() as patched:
            patched.setattr(InProcess, "receive", failing)
            interleaving.revisit()
        for one, previous in zip(found, before, strict=True):
            if one.candidate.name == "Attention":
                assert one == previous
            else:
                assert len(one.rounds) > len(previous.rounds)
        interleaving.revisit()
    for one, previous in zip(found, before, strict=True):
        assert one.entry["status"] == "ok" and len(one.rounds) > len(previous.rounds)


@pytest.mark.slow
def test_entries_contain_attention_kernel_and_flops_per_row(in_process: list) -> None:
    _, found = measure([candidate("Attention"), candidate("LinearAttention")])
    found += measure([candidate("Attention", "math")])[1]  # a forced backend applies to the entire process
    kernels = {(one.candidate.name, one.entry["mode"]): one.entry["attention_backend"] for one in found}
    assert {kernels["Attention", mode] for mode in MODES} == {"fused"}
    assert {kernels["math", mode] for mode in MODES} == {"math"}
    assert {kernels["LinearAttention", mode] for mode in MODES} == {None}
    for one in found:
        assert one.flops_per_row and one.entry["static_bytes"]
        assert interleave.VISITS["cpu"] * one.entry["n"] >= timing.STEPS and one.entry["batch_size"] == 2
    by_name = {one.candidate.name: one.flops_per_row for one in found if one.entry["mode"] == "train"}
    assert by_name["Attention"] == by_name["math"] > by_name["LinearAttention"]


@pytest.mark.one_in(3)
@pytest.mark.parametrize(
    ("options", "statuses", "reason"),
    [
        ({"how": "build"}, ["incompatible", "incompatible"], "fixed to 31 positions"),
        ({"how": "error"}, ["failed", "failed"], "ValueError: shapes do not match"),
        ({"how": "memory", "training_only": True}, ["ok", "out_of_memory"], "allocate"),
        ({"how": "slow", "training_only": True}, ["ok", "timeout"], "the limit is 2 s"),
    ],
)
def test_failure_of_one_model_is_reported_and_the_others_are_measured(
    in_process: list, options: dict, statuses: list[str], reason: str
) -> None:
    _, found = measure([candidate("Failing", limit=32, **options), candidate("LinearAttention")], limit_seconds=2.0)
    failing = [one.entry for one in found if one.candidate.name == "Failing"]
    assert [entry["status"] for entry in failing] == statuses
    assert all(reason in entry["reason"] for entry in failing if entry["status"] != "ok")
    assert {one.entry["status"] for one in found if one.candidate.name == "LinearAttention"} == {"ok"}


@pytest.mark.slow
def test_killed_process_affects_only_its_own_modes() -> None:
    """With real processes, one is killed by SIGKILL as if memory ran out, and the other is timed completely."""
    both = [candidate("Failing", how="killed", limit=32), candidate("LinearAttention")]
    with measuring(both, flops=False) as (interleaving, found):
        timed = set(interleaving.processes.timing)
    assert [(one.entry["mode"], one.entry["status"]) for one in found if one.candidate.name == "Failing"] == [
        ("inference", "out_of_memory"),
        ("train", "out_of_memory"),
    ]
    assert "not tried, because inference ended the process" in found[2].entry["reason"]
    assert [one.entry["status"] for one in found if one.candidate.name == "LinearAttention"] == ["ok", "ok"]
    assert timed == {"LinearAttention"}


@pytest.mark.slow
def test_worker_is_killed_after_a_timeout_and_its_last_error_line_is_reported() -> None:
    job = {"config": as_dict(config()), "spec": {"grid": None}, "batch": 1, "attention": None}
    process = WorkerProcess("lra_bench.profiling.worker", job)
    with pytest.raises(WorkerEnded, match="within 0 s") as timed_out:
        process.receive(0.01)
    assert timed_out.value.status == "timeout"
    process.end()
    process = WorkerProcess("lra_bench.profiling.worker", job)
    with pytest.raises(WorkerEnded, match="TypeError") as failed:
        process.request(60, "build")
    assert failed.value.status == "failed"
    process.end()


# ---- attention kernels


@pytest.mark.parametrize(("backend", "expected"), [(None, "fused"), ("math", "math")])
def test_attention_backend_is_detected_from_the_operators_that_ran(backend: str | None, expected: str) -> None:
    bench = Bench.build(config("Attention"), toy.spec(), 64, 2, hardware())
    with forced(backend):
        for mode in MODES:
            bench.step(mode)
            assert attention_backend(bench.model, bench.batch, bench.hardware) == expected
    assert torch.backends.cuda.flash_sdp_enabled(), "the forced backend must be reset after the context"


def test_kernel_with_a_name_attribute_is_detected_and_math_replaces_it() -> None:
    from lra_bench.models.kernels.softmax import softmax_attention

    class Dropping(torch.nn.Module):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return softmax_attention(x, x, x, dropout=0.5)

    x = torch.randn(1, 2, 100, 8)
    assert attention_backend(Dropping(), x, hardware()) == "slices"
    with forced("math"):
        assert attention_backend(Dropping(), x, hardware()) == "math"


@pytest.mark.gpu
@pytest.mark.parametrize(("precision", "expected"), [("fp32", {"efficient"}), ("bf16", {"flash", "cudnn"})])
def test_attention_backend_on_cuda(precision: str, expected: set[str]) -> None:
    options = config("Attention", ff_width=64, width=64)
    options.hardware = replace(options.hardware, device="cuda", precision=precision)
    bench = Bench.build(options, toy.spec(), 256, 2, resolve(options.hardware))
    bench.step("train")
    assert attention_backend(bench.model, bench.batch, bench.hardware) in expected
    with forced("math"):
        assert attention_backend(bench.model, bench.batch, bench.hardware) == "math"


# ---- largest batch


def fitting(rows: int, seconds_per_row: float = 0.0, bytes_per_row: int = 100):
    """Return an ``attempt`` that runs out of memory above ``rows`` rows, and the list of sizes that it tried."""
    tried: list[int] = []
    errors = [torch.OutOfMemoryError("no room")]
    if rows == 64:
        errors = [RuntimeError("CUDA error: CUBLAS_STATUS_ALLOC_FAILED when calling `cublasLtMatmul(handle)`")]

    def attempt(size: int) -> tuple[int, float]:
        tried.append(size)
        if size > rows:
            raise errors[size % len(errors)]
        return size * bytes_per_row, size * seconds_per_row

    return attempt, tried


@pytest.mark.parametrize(("rows", "size"), [(1, 1), (2, 2), (37, 32), (64, 64)])
def test_largest_batch_is_the_largest_power_of_two_that_fits(rows: int, size: int) -> None:
    attempt, tried = fitting(rows)
    assert largest_batch(attempt) == (size, "memory")
    assert tried == [2**power for power in range(len(tried))] and tried[-1] == 2 * size


def test_search_ends_before_a_limit_of_memory_or_time_is_exceeded() -> None:
    attempt, tried = fitting(1 << 20)
    assert (*largest_batch(attempt, memory_limit_bytes=1700), tried[-1]) == (16, "memory", 16)
    attempt, tried = fitting(1 << 20, seconds_per_row=0.1)
    assert (*largest_batch(attempt), tried[-1]) == (8, "time", 8)


def test_out_of_memory_error_is_raised_if_a_single_row_does_not_fit() -> None:
    attempt, _ = fitting(0)
    with pytest.raises(torch.OutOfMemoryError) as full:
        largest_batch(attempt)
    assert status_of(full.value)[0] == "out_of_memory"


@pytest.mark.slow
def test_largest_batch_is_measured_within_a_memory_limit(in_process: list) -> None:
    _, (one,) = measure([candidate("LinearAttention")], ("inference",), batch="largest", policy="largest", length=4096,
                     memory_limit_bytes=50_000_000)  # fmt: skip
    size = one.entry["batch_size"]
    assert one.entry["status"] == "ok" and one.entry["batch_policy"] == "largest" and one.stopped_by
    assert size > 1 and size & (size - 1) == 0
    assert one.entry["tokens_per_second"] == pytest.approx(size * 4096 / one.entry["median_seconds"])


@pytest.mark.one_in(3)
@pytest.mark.parametrize(("peaks", "expected"), [([3, 1, 5, 2, 9], 3), ([32], 32), ([None], None)])
def test_small_peaks_are_reported_as_median(monkeypatch: pytest.MonkeyPatch, peaks: list, expected: int | None) -> None:
    remaining = iter(peaks)

    def peak(*_: Any) -> PeakMemory:
        megabytes = next(remaining)
        return PeakMemory(peak_resident_growth_bytes=megabytes and megabytes << 20)

    monkeypatch.setattr(Bench, "peak", peak)
    job = {"config": as_dict(config()), "spec": dataclasses.asdict(toy.spec()), "batch": 1}
    one = worker.TimedModel({**job, "attention": None, "memory_limit_bytes": None})
    one.build(64, flops=False)
    assert one.measure_peak_memory("inference", 1)["memory"]["peak_resident_growth_bytes"] == (
        expected and expected << 20
    )
    assert not list(remaining)


def test_round_of_short_steps_starts_with_a_step_that_is_not_timed(in_process: list) -> None:
    job = {"config": as_dict(config()), "spec": dataclasses.asdict(toy.spec()), "batch": 1}
    one = worker.TimedModel({**job, "attention": None, "memory_limit_bytes": None})
    one.build(64, flops=False)
    one.warm_up("inference", limit_seconds=30.0)
    calls = []
    for step_seconds, lead in ((0.01, 1), (0.2, 0)):
        one.step, one.warm = (lambda: calls.append(1)), timing.WarmUp(1.0, step_seconds)
        calls.clear()
        assert len(one.time_block(3)["seconds"]) == 3
        assert len(calls) == 3 + lead


def test_a_failed_step_is_freed_before_the_memory_of_its_worker_is_released(monkeypatch: pytest.MonkeyPatch) -> None:
    """Memory that a failed worker still holds would be missing in the other workers of the device."""
    alive: list[bool] = []

    class Failing:
        def __init__(self, _: object) -> None:
            self.activation: Callable[[], object] = lambda: None

        def train(self) -> None:
            activation = torch.zeros(8)
            self.activation = weakref.ref(activation)
            raise MemoryError("no memory left")

        def release(self) -> None:
            alive.append(self.activation() is not None)

    monkeypatch.setattr(worker, "TimedModel", Failing)
    commands = io.StringIO('{"attention": null}\n{"command": "train"}\n')
    assert [list(answer) for answer in worker.answers(commands)] == [["failed"]]
    assert alive == [False]


@pytest.mark.slow
@pytest.mark.alone
@pytest.mark.skipif(not Path("/proc/self/schedstat").exists(), reason="needs /proc/self/schedstat")
@pytest.mark.skipif(usable_cpus() < 2, reason="needs two cores")
def test_worker_does_not_use_the_cores_after_a_round() -> None:
    """Threads of OpenMP spin for tens of milliseconds after a step; the worker answers only after they sleep."""
    both = replace(config(), hardware=replace(config().hardware, threads=2))
    job = {"config": as_dict(both), "spec": dataclasses.asdict(toy.spec()), "batch": 32}
    process = WorkerProcess("lra_bench.profiling.worker", {**job, "attention": None, "memory_limit_bytes": None})
    try:
        process.request(60, "build", length=1024, flops=False)
        process.request(60, "warm_up", mode="train", limit_seconds=30.0)
        busy = []
        for _ in range(5):
            process.request(60, "time_block", steps=2)
            before = cpu_seconds(process)
            time.sleep(0.05)
            busy.append(cpu_seconds(process) - before)
    finally:
        process.end()
    assert sorted(busy)[2] < 0.002


def cpu_seconds(process: WorkerProcess) -> float:
    """Return the CPU time of all threads of a worker."""
    tasks = Path(f"/proc/{process._process.pid}/task").glob("*/schedstat")
    return sum(int(task.read_text().split()[0]) for task in tasks) / 1e9


@pytest.mark.slow
@pytest.mark.alone
def test_waiting_for_idle_threads_ends_when_they_are_idle_or_after_the_limit() -> None:
    for busy_seconds, limit_seconds in ((0.2, 5.0), (0.6, 0.1)):
        end = time.monotonic() + busy_seconds
        thread = threading.Thread(target=spin, args=(end,))
        thread.start()
        started = time.monotonic()
        wait_for_idle_threads(limit_seconds)
        waited = time.monotonic() - started
        thread.join()
        expected = min(busy_seconds, limit_seconds)
        assert 0.8 * expected < waited < expected + 0.3


def spin(end: float) -> None:
    """Keep a core busy until ``end`` without holding the global interpreter lock, as threads of OpenMP do."""
    while time.monotonic() < end:
        zlib.crc32(bytes(64 << 20))
