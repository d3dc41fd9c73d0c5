"""Models at one length that take turns: who is timed when, what is found, and what the end of one means."""

import dataclasses
import threading
import time
import zlib
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch

from lra_bench.config.serialization import as_dict
from lra_bench.profiling import timing
from lra_bench.profiling.attention_backend import attention_backend, forced
from lra_bench.profiling.batch_search import largest_batch
from lra_bench.profiling.bench import Bench
from lra_bench.profiling.comparison import interleave, worker
from lra_bench.profiling.comparison.interleave import Interleaving
from lra_bench.profiling.comparison.types import ComparisonModel, Measured, Setting
from lra_bench.profiling.idle_threads import wait_for_idle_threads
from lra_bench.profiling.worker_pool import Ended, WorkerPool, WorkerProcess
from lra_bench.records.status import status_of
from lra_bench.runtime.hardware import resolve, usable_cpus
from lra_bench.runtime.memory import PeakMemory
from tests.profiling.test_profile import config, hardware
from tests.support import toy_networks as toy
from tests.support.in_process_workers import InProcess

MODES = ("inference", "train")
MODEL_NAMES = ("Attention", "LinearAttention")


def candidate(network: str, attention: str | None = None, **options: Any) -> ComparisonModel:
    return ComparisonModel(attention or network, network, config(network, **options), attention)


def setting(**changes: Any) -> Setting:
    known = Setting(
        spec=toy.spec(),
        length=64,
        batch=2,
        policy="fixed",
        hardware=hardware(),
        limit_seconds=30.0,
        memory_limit_bytes=None,
        flops=True,
        energy=False,
        peak_matmul_flops=False,
    )
    return dataclasses.replace(known, **changes)


@contextmanager
def visited(
    candidates: list[ComparisonModel], modes: tuple[str, ...] = MODES, **changes: Any
) -> Iterator[tuple[Interleaving, list[Measured]]]:
    with WorkerPool() as processes:
        held = Interleaving(setting(**changes), processes, lambda done, doing: None)
        yield held, held.run(candidates, {each.name: list(modes) for each in candidates})


def hold(*arguments: Any, **changes: Any) -> tuple[Interleaving, list[Measured]]:
    with visited(*arguments, **changes) as (held, found):
        return held, found


@pytest.fixture
def in_process(monkeypatch: pytest.MonkeyPatch):
    """The rule in small and no processes; threads are put back."""
    monkeypatch.setattr(interleave, "WorkerProcess", InProcess)
    monkeypatch.setattr("gc.unfreeze", lambda: None)  # a process of its own has not the tests in its memory
    for name, value in {"SECONDS": 0.01, "ROUNDS": 7, "ROUND_SECONDS": 0.01}.items():
        monkeypatch.setattr(timing, name, value)
    monkeypatch.setattr(timing, "WARM_UP_STEPS", 2)
    monkeypatch.setattr(InProcess, "commands", [])
    threads = torch.get_num_threads()
    yield InProcess.commands
    torch.set_num_threads(threads)


def test_all_are_built_then_warmed_up_then_take_turns_whose_order_turns_round(in_process: list) -> None:
    names = ["Attention", "LinearAttention", "math"]
    _, found = hold([candidate("Attention"), candidate("LinearAttention"), candidate("Attention", "math")], ("train",))
    expected = [(name, command) for command in ("build", "warm_up") for name in names]
    visit = -(-timing.ROUNDS // interleave.VISITS["cpu"])
    for number in range(visit):
        expected += [(name, "turn") for name in (reversed(names) if number % 2 else names)]
    assert in_process[: len(expected)] == expected
    rest = in_process[len(expected) :]
    assert [command for name, command in rest if name == "math"][-3:] == ["finish", "build", "measure_peak_memory"]
    assert [one.entry["status"] for one in found] == ["ok"] * 3
    assert all(len(one.round_medians) >= visit for one in found)


@pytest.mark.parametrize("visits", [1, 7])
def test_processes_go_on_to_the_next_length(in_process: list, monkeypatch: pytest.MonkeyPatch, visits: int) -> None:
    """Those that have no turn there stay where shorter lengths are visited again."""
    monkeypatch.setattr(interleave, "VISITS", {"cpu": visits})
    both = [candidate("Attention"), candidate("LinearAttention")]
    with WorkerPool() as processes:
        before = Interleaving(setting(length=64), processes, lambda done, doing: None)
        before.run(both, {name: ["train"] for name in MODEL_NAMES})
        first = dict(processes.timing), dict(processes.memory)
        assert set(first[0]) == set(MODEL_NAMES) and set(first[1]) == {(name, "train") for name in MODEL_NAMES}
        held = Interleaving(setting(length=128), processes, lambda done, doing: None)
        (one,) = held.run(both, {"Attention": [], "LinearAttention": ["train"]})
        staying = {"LinearAttention"} if visits == 1 else set(MODEL_NAMES)
        assert processes.timing == {name: first[0][name] for name in staying}
        assert processes.memory == first[1]
        processes.end_memory_processes()
        assert not processes.memory and processes.timing
    assert one.entry["length"] == 128 and one.entry["status"] == "ok"
    assert one.entry["tokens_per_second"] == pytest.approx(2 * 128 / one.entry["median_seconds"])
    assert one.flops_per_row == held.flops["LinearAttention"]["train"]


def test_turns_at_other_times_add_to_what_was_found(in_process: list) -> None:
    whole = interleave.VISITS["cpu"]
    with visited([candidate("Attention"), candidate("LinearAttention")]) as (held, found):
        for visit in range(2, whole + 1):
            first = [dataclasses.replace(one) for one in found]
            in_process.clear()
            held.again()
            assert {command for _, command in in_process} == {"build", "resume", "turn", "rest"}
            for one, before in zip(held.found, first, strict=True):
                assert one.rounds[: len(before.rounds)] == before.rounds
                assert len(one.rounds) >= timing.ROUNDS * visit / whole > len(before.rounds) - 1
                assert one.entry["n"] == sum(map(len, one.rounds)) > before.entry["n"]
                known = dict(before.entry)
                same = {name for name, value in one.entry.items() if value == known[name]}
                assert {"peak_resident_growth_bytes", "warmup_seconds", "attention_backend", "batch_size"} <= same
    assert all(one.entry["n"] >= timing.STEPS and len(one.rounds) >= timing.ROUNDS for one in found)


def test_slow_steps_are_spared_every_second_time(in_process: list, monkeypatch: pytest.MonkeyPatch) -> None:
    """All have their rounds in the end, and a process that has no turn stays for the next."""
    whole = interleave.VISITS["cpu"]
    with visited([candidate("Attention"), candidate("LinearAttention")], ("train",)) as (held, (slow, fast)):
        slow.warm = timing.WarmUp(1.0, 2 * timing.SLOW_STEP_SECONDS)
        processes = dict(held.processes.timing)
        for visit in range(2, whole + 1):
            before = len(slow.rounds), len(fast.rounds)
            in_process.clear()
            held.again()
            assert (len(slow.rounds) > before[0]) == (("Attention", "build") in in_process) == (visit in (3, 5, 7))
            assert len(fast.rounds) > before[1] and held.processes.timing == processes
    assert len(slow.rounds) >= timing.SLOW_ROUNDS
    with visited([candidate("Attention")], ("train",)) as (held, (slow,)):
        slow.warm = timing.WarmUp(1.0, 2 * timing.SLOW_STEP_SECONDS)
        in_process.clear()
        held.again()
        assert not in_process, "nobody is built for no turn"


def test_what_fails_at_another_time_keeps_what_it_had(in_process: list, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(self: worker.TimedModel, steps: int) -> dict:
        raise torch.OutOfMemoryError("no room")

    with visited([candidate("LinearAttention")], ("train",)) as (held, (one,)):
        entry, rounds = dict(one.entry), one.rounds
        with monkeypatch.context() as patched:
            patched.setattr(worker.TimedModel, "turn", full)
            held.again()
        assert one.entry == entry and one.rounds == rounds
        held.again()
        assert one.entry["status"] == "ok" and len(one.rounds) > len(rounds)


def test_a_process_that_dies_at_another_time_keeps_what_all_its_modes_had(
    in_process: list, monkeypatch: pytest.MonkeyPatch
) -> None:
    hear = InProcess.hear

    def dying(self: InProcess, seconds: float) -> dict[str, Any]:
        if in_process[-1] == ("Attention", "turn"):
            raise Ended("out_of_memory", "killed")
        return hear(self, seconds)

    with visited([candidate("Attention"), candidate("LinearAttention")]) as (held, found):
        before = [dataclasses.replace(one) for one in found]
        with monkeypatch.context() as patched:
            patched.setattr(InProcess, "hear", dying)
            held.again()
        for one, known in zip(found, before, strict=True):
            if one.candidate.name == "Attention":
                assert one == known
            else:
                assert len(one.rounds) > len(known.rounds)
        held.again()
    for one, known in zip(found, before, strict=True):
        assert one.entry["status"] == "ok" and len(one.rounds) > len(known.rounds)


@pytest.mark.slow
def test_entries_say_which_kernel_ran_and_what_a_row_costs(in_process: list) -> None:
    _, found = hold([candidate("Attention"), candidate("LinearAttention")])
    found += hold([candidate("Attention", "math")])[1]  # what is forced holds for a whole process
    kernels = {(one.candidate.name, one.entry["mode"]): one.entry["attention_backend"] for one in found}
    assert {kernels["Attention", mode] for mode in MODES} == {"fused"}
    assert {kernels["math", mode] for mode in MODES} == {"math"}
    assert {kernels["LinearAttention", mode] for mode in MODES} == {None}
    for one in found:
        assert one.flops_per_row and one.entry["static_bytes"]
        assert interleave.VISITS["cpu"] * one.entry["n"] >= timing.STEPS and one.entry["batch_size"] == 2
    by_name = {one.candidate.name: one.flops_per_row for one in found if one.entry["mode"] == "train"}
    assert by_name["Attention"] == by_name["math"] > by_name["LinearAttention"]


@pytest.mark.parametrize(
    ("options", "statuses", "reason"),
    [
        ({"how": "build"}, ["incompatible", "incompatible"], "fixed to 31 positions"),
        ({"how": "error"}, ["failed", "failed"], "ValueError: shapes do not match"),
        ({"how": "memory", "training_only": True}, ["ok", "out_of_memory"], "allocate"),
        ({"how": "slow", "training_only": True}, ["ok", "timeout"], "the limit is 2 s"),
    ],
)
def test_what_goes_wrong_with_one_is_told_and_the_others_go_on(
    in_process: list, options: dict, statuses: list[str], reason: str
) -> None:
    _, found = hold([candidate("Failing", limit=32, **options), candidate("LinearAttention")], limit_seconds=2.0)
    failing = [one.entry for one in found if one.candidate.name == "Failing"]
    assert [entry["status"] for entry in failing] == statuses
    assert all(reason in entry["reason"] for entry in failing if entry["status"] != "ok")
    assert {one.entry["status"] for one in found if one.candidate.name == "LinearAttention"} == {"ok"}


@pytest.mark.slow
def test_a_process_that_dies_ends_its_modes_alone() -> None:
    """Real processes: one is killed as by the kernel when memory runs out, the other is timed to the end."""
    held, found = hold([candidate("Failing", how="killed", limit=32), candidate("LinearAttention")], flops=False)
    assert [(one.entry["mode"], one.entry["status"]) for one in found if one.candidate.name == "Failing"] == [
        ("inference", "out_of_memory"),
        ("train", "out_of_memory"),
    ]
    assert "not tried, because inference ended the process" in found[2].entry["reason"]
    assert [one.entry["status"] for one in found if one.candidate.name == "LinearAttention"] == ["ok", "ok"]
    assert set(held.processes.timing) == {"LinearAttention"}


def test_a_silent_process_is_given_up_and_its_last_words_are_told() -> None:
    job = {"config": as_dict(config()), "spec": {"grid": None}, "batch": 1, "attention": None}
    live = WorkerProcess("lra_bench.profiling.comparison.worker", job)
    with pytest.raises(Ended, match="within 0 s") as silent:
        live.hear(0.01)
    assert silent.value.status == "timeout"
    live.end()
    live = WorkerProcess("lra_bench.profiling.comparison.worker", job)
    with pytest.raises(Ended, match="TypeError") as broken:
        live.ask(60, "build")
    assert broken.value.status == "failed"
    live.end()


# ---- which kernel


@pytest.mark.parametrize(("backend", "expected"), [(None, "fused"), ("math", "math")])
def test_the_kernel_is_found_by_looking_at_what_ran(backend: str | None, expected: str) -> None:
    bench = Bench.build(config("Attention"), toy.spec(), 64, 2, hardware())
    with forced(backend):
        for mode in MODES:
            bench.step(mode)
            assert attention_backend(bench.model, bench.batch, bench.hardware) == expected
    assert torch.backends.cuda.flash_sdp_enabled(), "what was forced is forced no longer"


def test_a_kernel_that_names_itself_is_seen_and_math_takes_its_place() -> None:
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
def test_the_kernel_on_cuda(precision: str, expected: set[str]) -> None:
    options = config("Attention", ff_width=64, width=64)
    options.hardware = replace(options.hardware, device="cuda", precision=precision)
    bench = Bench.build(options, toy.spec(), 256, 2, resolve(options.hardware))
    bench.step("train")
    assert attention_backend(bench.model, bench.batch, bench.hardware) in expected
    with forced("math"):
        assert attention_backend(bench.model, bench.batch, bench.hardware) == "math"


# ---- the largest batch


def fitting(rows: int, seconds_per_row: float = 0.0, bytes_per_row: int = 100):
    tried: list[int] = []

    def attempt(size: int) -> tuple[int, float]:
        tried.append(size)
        if size > rows:
            raise torch.OutOfMemoryError("no room")
        return size * bytes_per_row, size * seconds_per_row

    return attempt, tried


@pytest.mark.parametrize(("rows", "size"), [(1, 1), (2, 2), (37, 32), (64, 64)])
def test_the_largest_power_of_two_that_fits_is_found(rows: int, size: int) -> None:
    attempt, tried = fitting(rows)
    found = largest_batch(attempt)
    assert (found.size, found.stopped_by) == (size, "memory")
    assert tried == [2**power for power in range(len(tried))] and tried[-1] == 2 * size


def test_a_limit_of_memory_or_time_ends_the_search_before_it_is_passed() -> None:
    attempt, tried = fitting(1 << 20)
    found = largest_batch(attempt, memory_limit_bytes=1700)
    assert (found.size, found.stopped_by, tried[-1]) == (16, "memory", 16)
    attempt, tried = fitting(1 << 20, seconds_per_row=0.1)
    found = largest_batch(attempt)
    assert (found.size, found.stopped_by, tried[-1]) == (8, "time", 8)


def test_where_not_even_one_row_fits_memory_ran_out() -> None:
    attempt, _ = fitting(0)
    with pytest.raises(torch.OutOfMemoryError) as full:
        largest_batch(attempt)
    assert status_of(full.value)[0] == "out_of_memory"


def test_the_largest_batch_is_measured_within_a_limit(in_process: list) -> None:
    _, (one,) = hold([candidate("LinearAttention")], ("inference",), batch="largest", policy="largest", length=4096,
                     memory_limit_bytes=50_000_000)  # fmt: skip
    size = one.entry["batch_size"]
    assert one.entry["status"] == "ok" and one.entry["batch_policy"] == "largest" and one.stopped_by
    assert size > 1 and size & (size - 1) == 0
    assert one.entry["tokens_per_second"] == pytest.approx(size * 4096 / one.entry["median_seconds"])


@pytest.mark.parametrize(("peaks", "told"), [([3, 1, 5, 2, 9], 3), ([32], 32), ([None], None)])
def test_of_small_peaks_the_middle_counts(monkeypatch: pytest.MonkeyPatch, peaks: list, told: int | None) -> None:
    found = iter(peaks)

    def peak(*_: Any) -> PeakMemory:
        megabytes = next(found)
        return PeakMemory(peak_resident_growth_bytes=megabytes and megabytes << 20)

    monkeypatch.setattr(Bench, "peak", peak)
    job = {"config": as_dict(config()), "spec": dataclasses.asdict(toy.spec()), "batch": 1}
    one = worker.TimedModel({**job, "attention": None, "memory_limit_bytes": None})
    one.build(64, flops=False)
    assert one.measure_peak_memory("inference", 1)["memory"]["peak_resident_growth_bytes"] == (told and told << 20)
    assert not list(found)


def test_a_turn_begins_with_a_step_that_is_not_counted_where_steps_are_short(in_process: list) -> None:
    job = {"config": as_dict(config()), "spec": dataclasses.asdict(toy.spec()), "batch": 1}
    one = worker.TimedModel({**job, "attention": None, "memory_limit_bytes": None})
    one.build(64, flops=False)
    one.warm_up("inference", limit_seconds=30.0)
    calls = []
    for step_seconds, lead in ((0.01, 1), (0.2, 0)):
        one.step, one.warm = (lambda: calls.append(1)), timing.WarmUp(1.0, step_seconds)
        calls.clear()
        assert len(one.turn(3)["seconds"]) == 3
        assert len(calls) == 3 + lead


@pytest.mark.skipif(not Path("/proc/self/schedstat").exists(), reason="the kernel does not tell what threads ran")
@pytest.mark.skipif(usable_cpus() < 2, reason="needs two cores")
def test_who_has_had_a_turn_leaves_the_cores_to_the_next() -> None:
    """Threads of OpenMP spin for tens of milliseconds after a step."""
    both = replace(config(), hardware=replace(config().hardware, threads=2))
    job = {"config": as_dict(both), "spec": dataclasses.asdict(toy.spec()), "batch": 32}
    live = WorkerProcess(
        "lra_bench.profiling.comparison.worker", {**job, "attention": None, "memory_limit_bytes": None}
    )
    try:
        live.ask(60, "build", length=1024, flops=False)
        live.ask(60, "warm_up", mode="train", limit_seconds=30.0)
        ran = []
        for _ in range(5):
            live.ask(60, "turn", steps=2)
            before = seconds_run(live)
            time.sleep(0.05)
            ran.append(seconds_run(live) - before)
    finally:
        live.end()
    assert sorted(ran)[2] < 0.002


def seconds_run(live: WorkerProcess) -> float:
    """Of all threads of a process."""
    tasks = Path(f"/proc/{live._process.pid}/task").glob("*/schedstat")
    return sum(int(task.read_text().split()[0]) for task in tasks) / 1e9


def test_quiet_is_waited_for_but_not_for_ever() -> None:
    for busy_seconds, limit_seconds in ((0.2, 5.0), (0.6, 0.1)):
        end = time.monotonic() + busy_seconds
        thread = threading.Thread(target=spin, args=(end,))
        thread.start()
        begun = time.monotonic()
        wait_for_idle_threads(limit_seconds)
        waited = time.monotonic() - begun
        thread.join()
        expected = min(busy_seconds, limit_seconds)
        assert 0.8 * expected < waited < expected + 0.3


def spin(end: float) -> None:
    """Without the interpreter's lock, as threads of OpenMP do."""
    while time.monotonic() < end:
        zlib.crc32(bytes(64 << 20))
