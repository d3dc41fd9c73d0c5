"""Exponents of known power laws, and their intervals compared with the normal equations."""

import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy import stats

from lra_bench.profiling.scaling import exponent, growth
from lra_bench.profiling.sections import unmeasured

LENGTHS = [1024, 2048, 4096, 8192, 16384]


@given(power=st.floats(-3, 3), factor=st.floats(1e-6, 1e6), points=st.integers(3, 5))
def test_exponent_of_an_exact_power_law_is_found(power: float, factor: float, points: int) -> None:
    lengths = LENGTHS[:points]
    found = exponent(lengths, [factor * (length / 1000) ** power for length in lengths])
    assert found is not None
    assert found.exponent == pytest.approx(power, abs=1e-9)
    assert found.high - found.low == pytest.approx(0, abs=1e-6)


@given(st.lists(st.floats(1e-3, 1e3), min_size=5, max_size=5))
def test_slope_and_interval_equal_those_of_the_normal_equations(values: list[float]) -> None:
    found = exponent(LENGTHS, values)
    design = np.stack([np.ones(5), np.log(LENGTHS)], axis=1)
    inverse = np.linalg.inv(design.T @ design)
    solution = inverse @ design.T @ np.log(values)
    variance = np.sum((np.log(values) - design @ solution) ** 2) / 3 * inverse[1, 1]
    half = stats.t.ppf(0.975, 3) * math.sqrt(variance)
    assert found is not None
    assert [found.exponent, found.low, found.high] == pytest.approx(
        [solution[1], solution[1] - half, solution[1] + half], abs=1e-6
    )


def test_interval_has_the_stated_coverage() -> None:
    random = np.random.default_rng(0)
    covered = 0
    for _ in range(1000):
        found = exponent(LENGTHS, np.exp(1.7 * np.log(LENGTHS) + random.normal(0, 0.1, 5)).tolist())
        assert found is not None
        covered += found.low <= 1.7 <= found.high
    assert 0.93 <= covered / 1000 <= 0.97


@pytest.mark.parametrize(
    ("lengths", "values"),
    [([], []), ([1024, 2048], [1.0, 2.0]), ([1024, 2048, 4096], [1.0, 0.0, 2.0]), ([1024] * 3, [1.0, 2.0, 3.0])],
)
def test_exponent_is_none_for_insufficient_data(lengths: list[int], values: list[float]) -> None:
    assert exponent(lengths, values) is None


def entry(mode: str, length: int, seconds: float, **peaks: int | None) -> dict:
    return {**unmeasured(mode, length, 1, "ok", ""), "median_seconds": seconds, **peaks}


def test_growth_contains_every_mode_and_skips_unmeasured_lengths() -> None:
    speed = [entry("train", n, n**2 / 1e6, peak_resident_growth_bytes=n * 100) for n in LENGTHS]
    speed += [unmeasured("train", 32768, 1, "out_of_memory", "no")]
    speed += [entry("inference", n, n / 1e6, peak_allocated_bytes=n**2, peak_reserved_bytes=1) for n in LENGTHS[:3]]
    found = growth(speed)
    assert list(found) == ["train", "inference"]
    assert found["train"]["time_exponent"] == pytest.approx(2)
    assert found["train"]["memory_exponent"] == pytest.approx(1)
    assert found["train"]["lengths"] == LENGTHS
    assert found["inference"]["time_exponent"] == pytest.approx(1)
    assert found["inference"]["memory_exponent"] == pytest.approx(2)


def test_unknown_memory_does_not_affect_the_time_exponent() -> None:
    speed = [entry("train", n, n / 1e6, peak_resident_growth_bytes=None if n > 2048 else 5) for n in LENGTHS]
    found = growth(speed)["train"]
    assert found["memory_exponent"] is None and found["memory_low"] is None
    assert math.isclose(found["time_exponent"], 1)
