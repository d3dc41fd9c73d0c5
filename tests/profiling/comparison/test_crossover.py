"""The efficiency length, computed from known costs."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from lra_bench.profiling.comparison.crossover import Crossover, crossover
from lra_bench.profiling.comparison.ratios import geometric_mean, ratio

LENGTHS = (1024, 2048, 4096, 8192)


def costs(*values: float | None) -> dict[int, float | None]:
    return dict(zip(LENGTHS, values, strict=False))


@given(power=st.floats(0.5, 2.9), length=st.floats(1100, 8100))
def test_two_power_laws_cross_at_the_expected_length(power: float, length: float) -> None:
    own = {n: (n / length) ** power for n in LENGTHS}
    other = {n: (n / length) ** 3 for n in LENGTHS}
    found = crossover(own, other)
    assert found.verdict == "crosses"
    assert found.length == min(n for n in LENGTHS if n > length)
    assert found.interpolated == pytest.approx(length, rel=1e-6)


@pytest.mark.parametrize(
    ("own", "other", "expected"),
    [
        (costs(1, 1, 1), costs(2, 2, 2), Crossover("at once", 1024, None, 4096)),
        (costs(3, 3, 3), costs(2, 2, 2), Crossover("never", None, None, 4096)),
        (costs(2, 2, 2), costs(2, 2, 2), Crossover("never", None, None, 4096)),
        (costs(1, 3, 3), costs(2, 2, 2), Crossover("never", None, None, 4096)),
        (costs(3, 3, 3), costs(2, 2, None), Crossover("crosses", 4096, None, 4096)),
        (costs(1, 1, None), costs(2, 2, 2), Crossover("never", None, None, 4096)),
        (costs(1, 1, None), costs(2, 2, None), Crossover("at once", 1024, None, 2048)),
        (costs(None, None), costs(2, 2), Crossover("unknown", None, None, None)),
        (costs(1, 1), {}, Crossover("unknown", None, None, None)),
        (costs(3, 1), costs(2, 2, 2), Crossover("crosses", 2048, pytest.approx(1024 * 2**0.369, rel=1e-3), 2048)),
    ],
)
def test_crossover_of_known_costs(own: dict, other: dict, expected: Crossover) -> None:
    assert crossover(own, other) == expected


def test_single_cheaper_length_is_not_a_crossing() -> None:
    assert crossover(costs(3, 1, 3, 1), costs(2, 2, 2, 2)).length == 8192


def test_ratios_are_never_infinite_and_their_mean_is_geometric() -> None:
    assert ratio(3, 2) == 1.5
    assert {ratio(None, 2), ratio(3, None), ratio(3, 0)} == {None}
    assert geometric_mean([4.0, None, 0.25]) == pytest.approx(1), "twice as fast and half as fast cancel"
    assert geometric_mean([None]) is None
