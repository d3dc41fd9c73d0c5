"""The rule that chooses a learning rate: ends of the grid, diverged trials, ties, robustness."""

from __future__ import annotations

import itertools
import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from lra_bench.measurements.rate_search import RateSearch, Trial, added_rates, choose, mean_losses, rate_search, trial

GRID = (3e-4, 1e-3, 3e-3, 1e-2, 3e-2)
SEEDS = (1000, 1001)

losses = st.one_of(st.floats(0.01, 10.0), st.just(math.inf))


def trials_of(by_rate: dict[float, tuple[float, ...]], skills: dict[float, float] | None = None) -> list[Trial]:
    """Return one trial per rate and seed; an infinite loss is a diverged trial."""
    return [
        trial(
            lr,
            seed,
            "ok" if math.isfinite(loss) else "diverged",
            {
                "lowest_validation_loss": loss,
                "validation_score_at_lowest_loss": 0.5,
                "validation_skill_at_lowest_loss": (skills or {}).get(lr),
            },
            10.0,
        )
        for lr, of_seeds in by_rate.items()
        for seed, loss in zip(SEEDS, of_seeds, strict=True)
    ]


def searched(by_rate: dict[float, tuple[float, ...]], skills: dict[float, float] | None = None) -> RateSearch:
    return rate_search(GRID, SEEDS, 3.0, "rule", 1e-3, trials_of(by_rate, skills))


@given(st.lists(st.tuples(losses, losses), min_size=5, max_size=5))
def test_no_rate_has_a_lower_mean_than_the_chosen_one(found: list[tuple[float, float]]) -> None:
    by_rate = dict(zip(GRID, found, strict=True))
    search = searched(by_rate)
    means = {lr: (a + b) / 2 for lr, (a, b) in by_rate.items()}
    finite = {lr: mean for lr, mean in means.items() if math.isfinite(mean)}
    if not finite:
        assert search["chosen_lr"] is None and not search["edge"] and search["robustness"] is None
        return
    chosen = search["chosen_lr"]
    assert chosen is not None and means[chosen] == pytest.approx(min(finite.values()))
    assert search["edge"] == (chosen in (GRID[0], GRID[-1]))


def test_a_diverged_trial_excludes_its_rate_although_the_other_seed_is_the_best() -> None:
    by_rate = dict.fromkeys(GRID, (2.0, 2.0)) | {1e-2: (0.1, math.inf), 3e-3: (1.9, 1.9)}
    search = searched(by_rate)
    assert search["chosen_lr"] == 3e-3
    (excluded,) = [rate for rate in search["rates"] if rate["loss"] is None]
    assert excluded["lr"] == 1e-2
    assert mean_losses(search["trials"])[1e-2] == math.inf
    assert [each["loss"] for each in search["trials"] if each["lr"] == 1e-2] == [0.1, None]


def test_the_lower_of_two_equal_rates_is_chosen() -> None:
    for order in itertools.permutations(GRID):
        assert choose(dict.fromkeys(order, 1.0) | {3e-4: 2.0}) == 1e-3


def test_the_mean_decides_not_the_best_seed() -> None:
    assert searched(dict.fromkeys(GRID, (3.0, 3.0)) | {1e-3: (0.1, 2.9), 3e-3: (1.0, 1.0)})["chosen_lr"] == 3e-3


@pytest.mark.parametrize(("best", "added"), [(3e-2, [9e-2]), (3e-4, [1e-4]), (1e-2, []), (1e-3, [])])
def test_a_choice_at_an_end_adds_one_rate_beyond_that_end(best: float, added: list[float]) -> None:
    means = dict.fromkeys(GRID, 2.0) | {best: 1.0}
    assert added_rates(GRID, means, 3.0) == added


def test_no_rate_is_added_if_all_diverged() -> None:
    assert added_rates(GRID, dict.fromkeys(GRID, math.inf), 3.0) == []


def test_only_one_rate_is_ever_added() -> None:
    means = dict.fromkeys(GRID, 2.0) | {3e-2: 1.0, 9e-2: 0.5}
    assert added_rates(GRID, means, 3.0) == [9e-2]


@pytest.mark.parametrize(("loss", "chosen", "edge"), [(0.5, 9e-2, True), (1.5, 3e-2, False), (math.inf, 3e-2, False)])
def test_a_choice_is_at_the_edge_only_if_the_added_rate_is_chosen(loss: float, chosen: float, edge: bool) -> None:
    by_rate = dict.fromkeys(GRID, (2.0, 2.0)) | {3e-2: (1.0, 1.0), 9e-2: (loss, loss)}
    search = searched(by_rate)
    assert (search["chosen_lr"], search["edge"]) == (chosen, edge)
    assert [rate["added"] for rate in search["rates"]] == [False] * 5 + [True]
    assert search["trial_count"] == 12 and search["seconds"] == 120.0


@pytest.mark.parametrize(
    ("skills", "expected"),
    [
        ((0.1, 0.89, 0.9, 1.0, 0.95), 3 / 5),
        ((0.5, 0.5, 0.5, 0.5, 0.5), 1.0),
        ((-0.1, -0.2, 0.0, -0.3, -0.1), None),
        ((-0.1, -0.2, 0.01, -0.3, -0.1), 1 / 5),
    ],
)
def test_robustness_is_the_share_of_rates_near_the_best_and_null_without_skill(skills, expected) -> None:
    by_rate = dict.fromkeys(GRID, (2.0, 2.0)) | {1e-3: (1.0, 1.0)}
    assert searched(by_rate, dict(zip(GRID, skills, strict=True)))["robustness"] == expected


def test_a_diverged_rate_does_not_count_as_robust_and_unknown_skill_gives_null() -> None:
    by_rate = dict.fromkeys(GRID, (2.0, 2.0)) | {1e-3: (1.0, 1.0), 3e-2: (1.0, math.inf)}
    assert searched(by_rate, dict.fromkeys(GRID, 0.8))["robustness"] == 4 / 5
    assert searched(by_rate)["robustness"] is None


def test_the_best_skill_is_that_of_all_rates_and_the_share_that_of_the_grid() -> None:
    by_rate = dict.fromkeys(GRID, (2.0, 2.0)) | {3e-2: (1.0, 1.0), 9e-2: (0.5, 0.5)}
    assert searched(by_rate, dict.fromkeys(GRID, 0.5) | {9e-2: 1.0})["robustness"] == 0.0


@pytest.mark.parametrize("status", ["failed", "out_of_memory", "interrupted", "timeout"])
def test_no_rate_is_chosen_if_a_trial_did_not_end_with_a_result(status: str) -> None:
    complete = trials_of(dict.fromkeys(GRID, (2.0, 2.0)))
    complete[3] = trial(complete[3]["lr"], complete[3]["seed"], status, {}, None)
    search = rate_search(GRID, SEEDS, 3.0, "rule", 1e-3, complete)
    assert search["chosen_lr"] is None and search["seconds"] is None
    assert rate_search(GRID, SEEDS, 3.0, "rule", 1e-3, complete[:2])["chosen_lr"] is None
