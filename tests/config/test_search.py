"""Options of the search of the learning rate: keys, refused combinations, and configurations of trials."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from lra_bench.config import search
from lra_bench.config.hashing import config_hash
from lra_bench.config.schema import CellConfig
from lra_bench.config.serialization import as_dict, from_dict
from lra_bench.contracts import UserError
from lra_bench.grid.plan import plan
from lra_bench.grid.status import Planned
from lra_bench.records.key import CellKey

CELL = ["task=copy", "model=local", "protocol=smoke"]


def cells(*overrides: str) -> list[Planned]:
    return plan([*CELL, *overrides], Path("no-results"))


@pytest.fixture(scope="module")
def config() -> CellConfig:
    return cells("search=lr")[0].cell.config


def key(config: CellConfig) -> str:
    return config_hash(config, "data")


def with_search(config: CellConfig, **changes: object) -> CellConfig:
    return replace(config, search=replace(config.search, **changes))  # type: ignore[arg-type]


def test_the_grid_is_that_of_the_specification(config: CellConfig) -> None:
    assert config.search.rates == [3e-4, 1e-3, 3e-3, 1e-2, 3e-2]
    assert config.search.seeds == [1000, 1001] and config.search.factor == 3


def test_the_key_does_not_depend_on_the_chosen_rate(config: CellConfig) -> None:
    for lr in (1e-4, 1e-3, 9e-2):
        final = search.final_config(config, {"train.lr": lr})
        assert final.train.lr == lr and key(final) == key(config)
        assert key(from_dict(as_dict(final))) == key(config)


def test_a_pilot_is_the_trial_of_a_search_at_the_rate_of_the_protocol() -> None:
    (pilot,) = cells("search=trial", "seed=1000")
    (searched,) = cells("search=lr")
    trial = search.trial_config(searched.cell.config, {"train.lr": searched.cell.config.train.lr}, 1000)
    assert search.is_trial(pilot.cell.config) and pilot.cell.key.protocol == search.protocol_label(trial)
    assert pilot.cell.key.hash == config_hash(trial, searched.cell.fingerprint)


def test_rows_of_the_search_of_the_protocol_are_ranked_with_its_rows() -> None:
    """Check that a searched cell trains as one with the chosen rate in the protocol, and its trials as pilots."""
    cell = ["task=copy", "model=s4d"]
    (searched,), (pilot,) = (
        plan([*cell, *more], Path("no-results"))
        for more in (["search=quick"], ["search=trial", "train.lr=1e-2", "seed=1000"])
    )
    assert searched.cell.key.protocol == pilot.cell.key.protocol.removesuffix("-trial")
    final = search.final_config(searched.cell.config, {"train.lr": 1e-2})
    assert search.reference_lr(final) is None and key(final) == key(searched.cell.config)
    assert search.reference_lr(search.final_config(cells("search=lr")[0].cell.config, {"train.lr": 1e-2})) is not None
    assert key(search.trial_config(searched.cell.config, {"train.lr": 1e-2}, 1000)) == key(pilot.cell.config)
    assert cells("search=quick")[0].cell.key.protocol == "smoke-searched"


def test_the_key_depends_on_grid_seeds_rule_factor_and_the_rate_of_the_protocol(config, monkeypatch) -> None:
    changed = [
        with_search(config, rates=[*config.search.rates, 0.1]),
        with_search(config, seeds=[1000, 1002]),
        with_search(config, factor=2.0),
        replace(config, train=replace(config.train, lr=2e-3)),
        replace(config, train=replace(config.train, steps=21)),
        replace(config, search=CellConfig().search),
    ]
    keys = [key(config), *map(key, changed)]
    assert len(set(keys)) == len(keys)
    same = [
        with_search(config, rates=config.search.rates[::-1]),
        with_search(config, seeds=config.search.seeds[::-1]),
    ]
    assert set(map(key, same)) == {key(config)}
    monkeypatch.setattr(search, "RULE", "another rule")
    assert key(config) not in keys


def test_trials_of_other_grids_are_shared_and_depend_on_the_rates(config: CellConfig) -> None:
    trial = search.trial_config(config, {"train.lr": 3e-3}, 1000)
    assert (trial.train.lr, trial.seed, trial.search.protocol_lr) == (3e-3, 1000, config.train.lr)
    assert trial.tracker.name == "none" and search.is_trial(trial) and not search.searches(trial)
    other = search.trial_config(with_search(config, rates=[3e-3, 5e-3]), {"train.lr": 3e-3}, 1000)
    assert key(other) == key(trial)
    assert key(search.trial_config(config, {"train.lr": 1e-2}, 1000)) != key(trial)
    # The rate of the protocol determines the rates of parameters with hints.
    slower = replace(config, train=replace(config.train, lr=5e-4))
    assert key(search.trial_config(slower, {"train.lr": 3e-3}, 1000)) != key(trial)
    assert key(trial) != key(replace(trial, search=CellConfig().search))


@pytest.mark.slow
def test_searched_cells_have_a_protocol_of_their_own() -> None:
    (own,), (plain,) = cells("search=lr"), cells()
    assert (own.cell.key.protocol, plain.cell.key.protocol) == ("smoke-searched", "smoke")
    assert own.cell.key.protocol_name == own.cell.key.unsearched_protocol == "smoke"
    assert (
        own.cell.modified == ()
        and own.cell.key.has_protocol("smoke")
        and not plain.cell.key.has_protocol("smoke-searched")
    )
    (small,) = plan(["task=copy", "model=local", "protocol=small", "search=lr"], Path("no-results"))
    assert small.cell.key.protocol == "small-v3-searched"
    assert (small.cell.key.protocol_name, small.cell.key.unsearched_protocol) == ("small", "small-v3")
    assert CellKey("t", "m", "h", "my-searched-trial-x", "0", 0).protocol_name == "my-searched-trial-x"


def test_a_changed_grid_modifies_the_protocol() -> None:
    (own,) = cells("search=lr", "search.rates=[1e-3,1e-2]")
    assert own.cell.modified == ("search.rates",)


def test_the_search_is_an_option_of_grids(tmp_path: Path) -> None:
    (tmp_path / "grid").mkdir()
    text = "all: {protocol: smoke, search: lr}\nparts: [{task: copy, model: [local, fnet], seed: [0, 1]}]"
    (tmp_path / "grid" / "mine.yaml").write_text(text)
    found = plan(["grid=mine"], Path("no-results"), tmp_path)
    assert len(found) == 4 and {each.cell.key.protocol for each in found} == {"smoke-searched"}


@pytest.mark.one_in(4)
@pytest.mark.parametrize(
    ("overrides", "words"),
    [
        (["search=grid"], "search=grid: there is no such search"),
        (["search=lr", "seed=1000"], "seed=1000: is a seed of the search"),
        (["search=lr", "seed=0,1,1001"], "seed=1001: is a seed of the search"),
        (["search=lr", "train.lr=3e-3"], "train.lr=3e-3: search=lr chooses the learning rate"),
        (["search=lr", "train.lr=0.001"], "train.lr=0.001: search=lr chooses"),
        (["search=lr", "search.rates=[1e-3]"], "search.rates=[0.001]: must be two or more"),
        (["search=lr", "search.rates=[1e-3,1e-3]"], "must be two or more different rates"),
        (["search=lr", "search.rates=[1e-3,0]"], "search.rates=[0.001,0.0]: must be above 0"),
        (["search=lr", "search.rates=[1e-3,1e30]"], "must be above 0 and at most 1e9"),
        (["search=lr", "search.rates=[1e-3,many]"], "search.rates=[1e-3,many]: must be a list of numbers"),
        (["search=lr", "search.seeds=[]"], "search.seeds=[]: must be one or more"),
        (["search=lr", "search.seeds=[5,5]"], "must be one or more different seeds"),
        (["search=lr", "search.seeds=[-1]"], "search.seeds=[-1]: must be at least 0"),
        (["search=lr", "search.factor=1"], "search.factor=1"),
        (["search.name=trial"], "search.name=trial: is set by lra-bench"),
        (["search=lr", "search.protocol_lr=1e-3"], "search.protocol_lr=1e-3: is set by lra-bench"),
        (["search=lr", "search.rate=[1e-3]"], "search.rate: there is no such option"),
    ],
)
def test_wrong_options_give_one_sentence_that_names_the_option(overrides: list[str], words: str) -> None:
    with pytest.raises(UserError) as raised:
        cells(*overrides)
    assert words in str(raised.value) and "\n" not in str(raised.value)
