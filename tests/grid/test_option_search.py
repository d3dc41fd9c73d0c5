"""``search=optuna``: proposals, the choice, resuming, refused spaces, and what the record contains."""

from __future__ import annotations

import json
import math
import sys
from pathlib import Path

import pytest

from lra_bench.config.compose import compose
from lra_bench.config.hashing import config_hash
from lra_bench.config.serialization import as_dict, from_dict
from lra_bench.contracts import UserError
from lra_bench.grid.plan import plan
from lra_bench.grid.profiles import comparison_plans
from lra_bench.grid.search import trials_of, trials_to_add
from lra_bench.grid.status import Planned
from lra_bench.measurements.rate_search import Search
from lra_bench.records import store
from tests.grid.test_search import CELL, Laboratory, best_at
from tests.support.command import Folder

pytest.importorskip("optuna", reason="the extra optuna is not installed")

PLAIN = [text for text in CELL if text != "search=lr"]
SPACE = "search.space={train.lr:[1e-4,1e-1,log],backbone.depth:[1,2]}"
OPTIONS = ["search=optuna", SPACE, "search.trials=6", "search.seeds=[1000,1001]"]


class Options(Laboratory):
    """A laboratory of cells with ``search=optuna``."""

    def __init__(self, results: Path, loss, *overrides: str) -> None:
        super().__init__(results, loss)
        self.overrides = [*PLAIN, *OPTIONS, *overrides]


def test_the_best_options_are_chosen_and_all_trials_are_recorded(tmp_path: Path) -> None:
    laboratory = Options(tmp_path, best_at(3e-3), "seed=0,1")
    first, second = laboratory.search()
    assert isinstance(first, Planned) and first.cell.search is not None
    search = first.cell.search
    assert len(laboratory.rounds[0]) == 1 and len(search["trials"]) == search["trial_count"] == 12
    assert {seed for _, seed in laboratory.trials} == {1000, 1001}
    assert search["seconds"] == 7.0 * 12 and search["rates"] == []
    best = min(search["trials"], key=lambda trial: trial["loss"])
    assert search["chosen"] == best["options"] and search["chosen"].keys() == {"train.lr", "backbone.depth"}
    assert first.cell.config.train.lr == search["chosen_lr"] == best["lr"]
    assert first.cell.config.backbone.depth == search["chosen"]["backbone.depth"]
    assert first.cell.config.search.protocol_lr == 1e-3 and first.cell.key.protocol == "smoke-optuna"
    assert second.cell.search == search and second.cell.config.train == first.cell.config.train
    depths = {trial["options"]["backbone.depth"] for trial in search["trials"]}
    assert depths == {1, 2} and all(1e-4 <= trial["lr"] <= 1e-1 for trial in search["trials"])
    facts = dict(Search.facts(search))
    assert f"backbone.depth={search['chosen']['backbone.depth']}" in facts["searched options"]


def test_the_key_does_not_depend_on_the_choice(tmp_path: Path) -> None:
    laboratory = Options(tmp_path, best_at(3e-3))
    (found,) = laboratory.search()
    assert isinstance(found, Planned)
    again = from_dict(json.loads(json.dumps(as_dict(found.cell.config))))
    assert config_hash(again, found.cell.fingerprint) == found.cell.key.hash
    keys = {found.cell.key.hash}
    for text in ("search.trials=5", "search.seeds=[1000]", "search.space={train.lr:[1e-4,1e-1,linear]}"):
        (other,) = plan([*PLAIN, *OPTIONS, text], tmp_path)
        keys.add(other.cell.key.hash)
    assert len(keys) == 4


@pytest.mark.one_in(2)
@pytest.mark.parametrize("number", [1, 7])
def test_a_search_that_was_stopped_continues_with_the_same_proposals(tmp_path: Path, number: int) -> None:
    whole = Options(tmp_path / "whole", best_at(3e-3))
    (expected,) = whole.search()
    calls = 0

    def stopped(lr: float, seed: int) -> float:
        nonlocal calls
        calls += 1
        if calls > number:
            raise KeyboardInterrupt
        return best_at(3e-3)(lr, seed)

    laboratory = Options(tmp_path / "stopped", stopped)
    with pytest.raises(KeyboardInterrupt):
        laboratory.search()
    assert trials_to_add(laboratory.planned, tmp_path / "stopped", "never") == 12 - 2 * (number // 2 + 1)
    rest = Options(tmp_path / "stopped", best_at(3e-3))
    (found,) = rest.search()
    assert isinstance(found, Planned) and isinstance(expected, Planned)
    assert found.cell.search == expected.cell.search and len(rest.trials) == len(whole.trials) - number


def test_diverged_trials_are_not_chosen_and_failed_ones_end_the_search(tmp_path: Path) -> None:
    laboratory = Options(tmp_path / "some", lambda lr, seed: math.inf if lr > 1e-3 else best_at(3e-3)(lr, seed))
    (found,) = laboratory.search()
    assert isinstance(found, Planned) and found.cell.config.train.lr <= 1e-3
    (ended,) = Options(tmp_path / "all", lambda lr, seed: math.inf).search()
    assert isinstance(ended, tuple) and (ended[1].status, ended[2]) == ("diverged", 1)
    assert "with every choice of options a trial diverged" in ended[1].reason
    assert store.load(ended[1].path).search["chosen"] is None
    (ended,) = Options(tmp_path / "failed", lambda lr, seed: "timeout").search()
    assert isinstance(ended, tuple) and ended[1].status == "timeout"
    assert ended[1].reason.startswith("search: the trial of train.lr=")


@pytest.mark.parametrize(
    ("overrides", "message"),
    [
        ([], "search=optuna: needs the options to search"),
        (["search.space={seed:[0,1]}"], "seed is not searched"),
        (["search.space={train.rate:[0.1,0.2]}"], r"train\.rate: there is no such option"),
        (["search.space={train.lr:[0.1]}"], "two or more different values"),
        (["search.space={train.lr:[0.1,0.1]}"], "two or more different values"),
        (["search.space={train.lr:0.1}"], "must be a list of values"),
        (["search.space={train.lr:[[1],[2]]}"], "must be a list of values"),
        (["search.space={train.lr:[a,b,log]}"], "must be a range of two numbers"),
        (["search.space={train.lr:[0,1,log]}"], "above 0 with log"),
        (["search.space={train.lr:[2,1,linear]}"], "first number must be below"),
        ([SPACE, "train.lr=0.1"], "search=optuna chooses train.lr"),
        ([SPACE, "seed=1000"], "is a seed of the search"),
        ([SPACE, "search.trials=0"], "search.trials=0: must be at least 1"),
    ],
)
def test_a_wrong_space_gives_one_sentence(tmp_path: Path, overrides: list[str], message: str) -> None:
    with pytest.raises(UserError, match=message):
        plan([*PLAIN, "search=optuna", *overrides], tmp_path)


def test_wrong_values_are_refused_before_the_first_trial(tmp_path: Path) -> None:
    (cell,) = plan([*PLAIN, "search=optuna", "search.space={backbone.depth:[1,0]}"], tmp_path)
    with pytest.raises(UserError, match=r"backbone\.depth=0: must be at least 1"):
        trials_of(cell, tmp_path)


def test_a_missing_package_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (cell,) = plan([*PLAIN, *OPTIONS], tmp_path)
    monkeypatch.setitem(sys.modules, "optuna", None)
    with pytest.raises(UserError, match=r"search=optuna: needs optuna; install it with .*optuna"):
        trials_of(cell, tmp_path)


def test_a_profile_needs_given_options(tmp_path: Path) -> None:
    with pytest.raises(UserError, match="search=optuna: a profile measures one choice"):
        comparison_plans([*PLAIN, *OPTIONS], tmp_path)


def test_a_space_in_an_option_file_is_replaced_as_a_whole(tmp_path: Path) -> None:
    (tmp_path / "search").mkdir()
    (tmp_path / "search" / "mine.yaml").write_text(
        "name: optuna\nseeds: [7]\ntrials: 2\nspace: {train.lr: [1e-4, 1e-2, log], backbone.depth: [1, 2]}\n"
    )
    found = compose(["search=mine", *PLAIN], tmp_path).config.search
    own = compose(["search=mine", "search.space={train.clip:[0.5,1.0]}", *PLAIN], tmp_path).config.search
    assert found.space == {"train.lr": [1e-4, 1e-2, "log"], "backbone.depth": [1, 2]}
    assert own.space == {"train.clip": [0.5, 1.0]}


@pytest.mark.slow
def test_a_search_of_options_runs_from_the_command(tmp_path: Path, forks) -> None:
    folder = Folder(tmp_path)
    short = ["train.steps=6", "train.evaluate_every=3", "measure.extrapolation_ratios=[1]", "search.seeds=[1000]"]
    done = forks.command(folder, "bench", *PLAIN, "search=optuna", SPACE, "search.trials=3", *short)
    assert done.stderr.count("lowest validation loss") == 3 and "trial of train.lr=" in done.stderr
    record = folder.record()
    search = record["search"]
    assert (record["status"], record["key"]["protocol"]) == ("ok", "smoke-optuna")
    assert record["config"]["backbone"]["depth"] == search["chosen"]["backbone.depth"]
    trials = store.load_all(tmp_path / "results" / "trials")
    assert len(trials) == 3 and not any(trial.metrics for trial in trials)  # no trial is tested
    again = forks.command(folder, "bench", *PLAIN, "search=optuna", SPACE, "search.trials=3", *short)
    assert "lowest validation loss" not in again.stderr
