"""The timing rules with a simulated clock, and ratios under drift."""

import gc

import numpy as np
import pytest
import torch

from lra_bench.profiling import timing as speed
from lra_bench.profiling.comparison.ratios import undisturbed_ratio

CPU = torch.device("cpu")


class Clock:
    """A clock that only steps advance, each by the next of its durations; the machine may slow down over time."""

    def __init__(self, slowdown_per_second: float = 0.0) -> None:
        self.now = 0.0
        self.slowdown = slowdown_per_second

    def step(self, *seconds: float):
        durations = list(seconds)

        def run() -> None:
            duration = durations.pop(0) if len(durations) > 1 else durations[0]
            self.now += duration * (1 + self.slowdown * self.now)
            run.calls += 1

        run.calls = 0
        return run


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch):
    def make(slowdown_per_second: float = 0.0) -> Clock:
        clock = Clock(slowdown_per_second)
        monkeypatch.setattr(speed.time, "perf_counter", lambda: clock.now)
        return clock

    return make


@pytest.mark.parametrize(
    ("seconds", "warm_up_steps", "n", "short"),
    [
        (0.001, 10, 2100, False),  # the warm-up ends after ten steps, the window after two seconds
        (0.09, 6, 24, False),  # the warm-up ends after half a second
        (0.3, 2, 20, False),  # the window ends after twenty steps
        (0.49, 2, 20, False),
        (0.6, 2, 5, True),  # five slow steps on a CPU suffice
        (30.0, 2, 5, True),
    ],
)
def test_warm_up_and_window_follow_the_rules(clock, seconds: float, warm_up_steps: int, n: int, short: bool) -> None:
    ticking = clock()
    step = ticking.step(seconds)
    timing = speed.measure(step, CPU)
    assert (timing.n, timing.short_run) == (n, short)
    assert step.calls == warm_up_steps + n
    assert timing.warmup_seconds == pytest.approx(warm_up_steps * seconds)
    assert timing.median_seconds == pytest.approx(seconds)
    assert timing.n * timing.median_seconds >= speed.SECONDS - 1e-6


def test_shorter_window_can_be_requested(clock) -> None:
    warm = speed.warm_up(clock().step(0.1), CPU, seconds=0.25)
    assert warm.seconds == pytest.approx(0.3)
    timing = speed.measure(clock().step(0.01), CPU, seconds=0.25)
    assert speed.STEPS <= timing.n < 30


def test_warm_up_steps_are_not_part_of_the_results(clock) -> None:
    timing = speed.measure(clock().step(0.3, 0.1, 0.01), CPU)
    assert timing.warmup_seconds == pytest.approx(0.3 + 0.1 + 8 * 0.01)
    assert timing.p90_seconds == pytest.approx(0.01)


def test_first_call_that_compiles_does_not_affect_the_step_time(clock) -> None:
    warm = speed.warm_up(clock().step(40.0, 0.02), CPU, compiled=True)
    assert warm.step_seconds == pytest.approx(0.02)
    assert warm.seconds == pytest.approx(40.04)


def test_only_the_second_half_of_the_warm_up_determines_the_window(clock) -> None:
    assert speed.warm_up(clock().step(*[0.05] * 5, 0.01), CPU).step_seconds == pytest.approx(0.01)


def test_window_is_filled_if_steps_get_faster_after_the_warm_up(clock) -> None:
    timing = speed.measure(clock().step(*[0.4] * 2, 0.05), CPU)
    assert timing.n * timing.median_seconds >= speed.SECONDS
    assert timing.median_seconds == pytest.approx(0.05)


def test_window_has_enough_steps_if_steps_get_slower(clock) -> None:
    timing = speed.measure(clock().step(*[0.1] * 10, 0.9), CPU)
    assert timing.n >= speed.SLOW_STEPS
    assert timing.short_run == (timing.n < speed.STEPS)


def test_results_are_percentiles_of_the_window(clock) -> None:
    durations = np.random.default_rng(0).uniform(0.08, 0.12, 1000)
    step = clock().step(*durations)
    timing = speed.measure(step, CPU)
    window = durations[step.calls - timing.n : step.calls]
    assert [timing.p10_seconds, timing.median_seconds, timing.p90_seconds] == pytest.approx(
        np.percentile(window, [10, 50, 90])
    )


def test_step_over_the_limit_raises_after_the_warm_up(clock) -> None:
    step = clock().step(7.0)
    with pytest.raises(speed.TooSlow, match="7 s"):
        speed.measure(step, CPU, limit_seconds=30)
    assert step.calls == 2
    longer = clock().step(31.0)
    with pytest.raises(speed.TooSlow, match="31 s"):
        speed.measure(longer, CPU, limit_seconds=30)
    assert longer.calls == 1, "no second step must be run if a single step exceeds the limit"
    assert speed.measure(clock().step(5.9), CPU, limit_seconds=30).n == speed.SLOW_STEPS
    assert speed.measure(clock().step(0.001), CPU, limit_seconds=30).n > speed.STEPS


def test_slow_first_step_does_not_count_as_exceeding_the_limit(clock) -> None:
    timing = speed.measure(clock().step(11.5, 3.4), CPU, limit_seconds=30)
    assert (timing.n, timing.warmup_seconds) == (speed.SLOW_STEPS, pytest.approx(14.9))
    assert timing.p90_seconds == pytest.approx(3.4)


def alternate(ticking, **seconds: float):
    """Time steps of the given durations interleaved; return the rounds, and name and number of steps of each."""
    calls: list[tuple[str, int]] = []

    def blocks(name: str):
        def run(n: int) -> list[float]:
            calls.append((name, n))
            return speed.block(ticking.step(seconds[name]), CPU, n)

        return run

    warm = {name: speed.WarmUp(1.0, each) for name, each in seconds.items()}
    return speed.alternate({name: blocks(name) for name in seconds}, warm, CPU), calls


def test_ratios_of_rounds_cancel_drift(clock) -> None:
    rounds, _ = alternate(clock(slowdown_per_second=0.05), a=0.01, b=0.02)
    assert undisturbed_ratio(rounds["a"], rounds["b"])[0] == pytest.approx(2, rel=0.02)

    drifting = clock(slowdown_per_second=0.05)
    one, other = (speed.measure(drifting.step(seconds), CPU).median_seconds for seconds in (0.01, 0.02))
    assert other / one > 2.1, "the drift must affect measurements that are not interleaved"


def test_rounds_are_short_and_their_order_is_reversed_each_time(clock) -> None:
    _, calls = alternate(clock(), a=0.025, b=0.025, c=0.025)
    assert calls[:9] == [(name, 3) for name in "abccbaabc"], "a round takes 0.075 s"
    assert len(calls) == 3 * speed.ROUNDS


def test_interleaved_rounds_fill_the_timing_window_of_every_step(clock) -> None:
    rounds, _ = alternate(clock(), a=0.001, b=0.03, c=0.3, d=0.8)
    durations = {name: np.concatenate(rounds[name]) for name in rounds}
    assert all(each.sum() >= speed.SECONDS for each in durations.values())
    assert [len(durations[name]) >= speed.STEPS for name in "abcd"] == [True, True, True, False]
    assert len(durations["d"]) == speed.SLOW_ROUNDS


@pytest.mark.parametrize("visits", [1, 2, 3, 4, 5])
def test_several_visits_together_fill_the_timing_window(clock, visits: int) -> None:
    ticking = clock()
    steps = {"short": 0.001, "medium": 0.3, "slow": 0.8}
    warm = {name: speed.WarmUp(1.0, seconds) for name, seconds in steps.items()}
    blocks = {name: lambda n, name=name: speed.block(ticking.step(steps[name]), CPU, n) for name in steps}
    rounds: dict[str, list[list[float]]] = {}
    for visit in range(1, visits + 1):
        before, rounds = rounds, speed.alternate(blocks, warm, CPU, visit / visits, rounds)
        for name, total in (("short", speed.ROUNDS), ("medium", speed.ROUNDS), ("slow", speed.SLOW_ROUNDS)):
            assert rounds[name][: len(before.get(name, ()))] == before.get(name, [])
            assert len(rounds[name]) == np.ceil(total * visit / visits), "each visit must have its share of rounds"
    assert np.concatenate(rounds["short"]).sum() >= speed.SECONDS


def test_fast_and_slow_steps_are_spread_over_the_same_time(clock) -> None:
    _, calls = alternate(clock(), fast=0.001, medium=0.3, slow=3.0)
    rounds = np.cumsum([name == "fast" for name, _ in calls])
    for name, count in (("slow", speed.SLOW_ROUNDS), ("medium", speed.ROUNDS)):
        at = [number for number, (called, _) in zip(rounds, calls, strict=True) if called == name]
        assert len(at) in (count, count - 1)
        gaps = np.diff([0, *at])
        assert gaps.max() - gaps.min() <= 2 and at[-1] >= speed.ROUNDS - 1


def test_step_that_fails_is_not_called_again_and_the_others_are(clock) -> None:
    ticking = clock()
    calls: list[str] = []

    def blocks(name: str):
        def run(n: int) -> list[float]:
            calls.append(name)
            failed = name == "b" and calls.count("b") == 2
            return [] if failed else speed.block(ticking.step(0.03), CPU, n)

        return run

    warm = dict.fromkeys("abc", speed.WarmUp(1.0, 0.03))
    rounds = speed.alternate({name: blocks(name) for name in "abc"}, warm, CPU)
    assert "".join(calls[:12]) == "abccbaaccaac"
    assert len(rounds["b"]) == 1
    assert len(rounds["a"]) == len(rounds["c"]) == np.ceil(speed.SECONDS / 0.06), "a round has two steps"


@pytest.mark.parametrize("enabled", [True, False])
def test_no_garbage_is_collected_while_steps_are_timed(clock, enabled: bool) -> None:
    ticking, collecting = clock().step(0.1), []

    def step() -> None:
        collecting.append(gc.isenabled())
        ticking()

    before = gc.isenabled()
    try:
        (gc.enable if enabled else gc.disable)()
        speed.measure(step, CPU)
        assert not any(collecting[10:])
        assert gc.isenabled() == enabled

        remaining = iter(range(2 * speed.WARM_UP_STEPS))
        with pytest.raises(StopIteration):
            speed.measure(lambda: next(remaining), CPU)
        assert gc.isenabled() == enabled
    finally:
        (gc.enable if before else gc.disable)()


@pytest.mark.slow
@pytest.mark.alone
def test_timing_with_the_real_clock() -> None:
    x = torch.randn(256, 256)
    timing = speed.measure(lambda: [x @ x for _ in range(20)], CPU)
    assert 0 < timing.p10_seconds <= timing.median_seconds <= timing.p90_seconds
    assert timing.n >= speed.STEPS


@pytest.mark.gpu
def test_cuda_events_measure_the_device_and_not_the_launch() -> None:
    device = torch.device("cuda")
    x = torch.randn(8192, 8192, device=device)
    timing = speed.measure(lambda: x @ x, device)
    marks = []
    for _ in range(20):
        torch.cuda.synchronize()
        started = speed.time.perf_counter()
        x @ x
        torch.cuda.synchronize()
        marks.append(speed.time.perf_counter() - started)
    assert timing.median_seconds == pytest.approx(float(np.median(marks)), rel=0.1)
    assert not timing.short_run
