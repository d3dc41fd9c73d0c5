"""Searches of the learning rate: which trials run, what they choose, failures, resuming, and the plan of a dry run.

The trials of most tests are not trained: ``Laboratory`` writes records with given losses.
"""

from __future__ import annotations

import json
import math
import signal
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import psutil
import pytest

from lra_bench.cells.cell import blank_record
from lra_bench.cells.subprocess import WRONG_INPUT
from lra_bench.contracts import Outcome
from lra_bench.grid.cost import estimates
from lra_bench.grid.execute import execute
from lra_bench.grid.local import Local
from lra_bench.grid.plan import plan
from lra_bench.grid.search import (
    all_trials,
    run_trials,
    trials_folder,
    trials_of,
    trials_to_add,
    with_choice,
)
from lra_bench.grid.status import EndedCell, Planned
from lra_bench.records import store
from lra_bench.records.environment import environment
from lra_bench.records.schema import Record
from tests.faults.outcome import wait_for
from tests.support.command import TINY, Folder

CELL = [*(text for text in TINY if text != "task=listops"), "task=copy", "model=local", "search=lr", "tracker=none"]
GRID = (3e-4, 1e-3, 3e-3, 1e-2, 3e-2)
QUICK = [
    *(CELL), "train.steps=6", "train.evaluate_every=3", "measure.extrapolation_ratios=[1]",
    "search.rates=[1e-3,1e-2,2e-2]", "search.seeds=[1000]",
]  # fmt: skip


class Laboratory:
    """Runs trials without training: ``loss`` maps a rate and a seed to a loss, or to the status of a failure."""

    def __init__(self, results: Path, loss: Callable[[float, int], float | str], *overrides: str) -> None:
        self.results, self.loss, self.overrides = results, loss, [*CELL, *overrides]
        self.rounds: list[list[tuple[float, int]]] = []

    @property
    def planned(self) -> list[Planned]:
        return plan(self.overrides, self.results)

    @property
    def trials(self) -> list[tuple[float, int]]:
        """Rate and seed of all trials that were run, in their order."""
        return [each for batch in self.rounds for each in batch]

    def run(self, batch: Sequence[Planned], folder: Path) -> Iterator[EndedCell]:
        assert folder == trials_folder(self.results)
        self.rounds.append([])
        for each in batch:
            lr, seed = each.cell.config.train.lr, each.cell.config.seed
            self.rounds[-1].append((lr, seed))
            found = self.loss(lr, seed)
            if found == "wrong input":
                yield each, None, WRONG_INPUT
                continue
            record = blank_record(each.cell, each.attempt, environment(None))
            record.wall_seconds = 7.0
            record.status = found if isinstance(found, str) else "ok" if math.isfinite(found) else "diverged"
            if record.status == "ok":
                record.training = {
                    "lowest_validation_loss": float(found),
                    "validation_score_at_lowest_loss": 0.5,
                    "validation_skill_at_lowest_loss": 0.4,
                    "train_seconds": 5.0,
                }
            yield each, store.keep_best(record, folder), int(record.status != "ok")

    def search(self, rerun: str = "never") -> list[Planned | EndedCell]:
        """Run the trials of all cells and return them with their choice."""
        planned = self.planned
        run_trials(planned, self.results, rerun, self.run)
        return [with_choice(each, self.results) for each in planned]


def best_at(lr: float) -> Callable[[float, int], float]:
    """Return losses that grow with the distance to a rate, and differ between seeds."""
    return lambda own, seed: 1 + abs(math.log(own / lr)) + (seed - 1000) / 100


@pytest.mark.slow
def test_all_seeds_of_a_cell_share_the_trials_and_the_choice(tmp_path: Path) -> None:
    laboratory = Laboratory(tmp_path, best_at(3e-3), "seed=0,1,2")
    found = laboratory.search()
    assert sorted(laboratory.trials) == [(lr, seed) for lr in GRID for seed in (1000, 1001)]
    assert len(laboratory.rounds[0]) == 1  # a wrong option is reported once
    for each in found:
        assert isinstance(each, Planned)
        assert (each.cell.config.train.lr, each.cell.config.search.protocol_lr) == (3e-3, 1e-3)
        search = each.cell.search
        assert search is not None and (search["chosen_lr"], search["edge"]) == (3e-3, False)
        assert [rate["loss"] for rate in search["rates"]] == pytest.approx(
            [best_at(3e-3)(lr, 1000) + 0.005 for lr in GRID]
        )
        assert each.cell.command.endswith("seed=0") or "search=lr" in each.cell.command
    assert {each.cell.key.hash for each in found} == {each.cell.key.hash for each in laboratory.planned}


@pytest.mark.one_in(4)
@pytest.mark.parametrize(
    ("best", "added", "chosen", "edge"),
    [(3e-3, [], 3e-3, False), (1.0, [9e-2], 9e-2, True), (1e-9, [1e-4], 1e-4, True), (3.1e-2, [9e-2], 3e-2, False)],
)
def test_the_grid_is_extended_once_at_the_end_that_was_chosen(tmp_path, best, added, chosen, edge) -> None:
    laboratory = Laboratory(tmp_path, best_at(best))
    (found,) = laboratory.search()
    assert isinstance(found, Planned) and found.cell.search is not None
    assert laboratory.trials[10:] == [(lr, seed) for lr in added for seed in (1000, 1001)]
    assert (found.cell.search["chosen_lr"], found.cell.search["edge"]) == (chosen, edge)
    assert found.cell.search["trial_count"] == 10 + 2 * len(added)
    assert found.cell.search["seconds"] == 7.0 * found.cell.search["trial_count"]


def test_a_rate_at_which_a_trial_diverged_is_not_chosen(tmp_path: Path) -> None:
    laboratory = Laboratory(
        tmp_path, lambda lr, seed: math.inf if (lr, seed) == (3e-3, 1001) else best_at(3e-3)(lr, seed)
    )
    (found,) = laboratory.search()
    assert isinstance(found, Planned) and found.cell.search is not None
    assert found.cell.config.train.lr == 1e-2 or found.cell.config.train.lr == 1e-3
    assert next(rate for rate in found.cell.search["rates"] if rate["lr"] == 3e-3)["loss"] is None


def test_if_all_trials_diverged_the_record_says_so_and_nothing_is_trained(tmp_path: Path) -> None:
    laboratory = Laboratory(tmp_path, lambda lr, seed: math.inf)
    (found,) = laboratory.search()
    assert isinstance(found, tuple) and len(laboratory.trials) == 10
    _, record, code = found
    assert record is not None and (record.status, code) == ("diverged", 1)
    assert "at every learning rate from 0.0003 to 0.03 a trial diverged" in record.reason
    stored = store.load(record.path)  # type: ignore[arg-type]
    assert stored.search is not None and stored.search["chosen_lr"] is None and stored.search["robustness"] is None
    assert plan(CELL, tmp_path)[0].status == "done"


@pytest.mark.one_in(4)
@pytest.mark.parametrize("status", ["out_of_memory", "failed", "timeout", "incompatible"])
def test_a_failed_trial_ends_the_search_with_its_status(tmp_path: Path, status: str) -> None:
    laboratory = Laboratory(tmp_path, lambda lr, seed: status)
    (found,) = laboratory.search()
    assert isinstance(found, tuple) and laboratory.trials == [(3e-4, 1000)]
    record = found[1]
    assert record is not None and record.status == status
    assert record.reason.startswith("search: the trial of train.lr=0.0003 with seed 1000 ended")
    # The failed trial is not run again unless it is requested.
    laboratory.loss = best_at(3e-3)
    laboratory.search()
    assert len(laboratory.trials) == 1
    if status != "incompatible":
        (found,) = laboratory.search("failed")
        assert isinstance(found, Planned) and len(laboratory.trials) == 11


def test_a_wrong_option_is_reported_once(tmp_path: Path) -> None:
    laboratory = Laboratory(tmp_path, lambda lr, seed: "wrong input", "seed=0,1")
    for found in laboratory.search():
        assert isinstance(found, tuple) and found[1:] == (None, WRONG_INPUT)
    assert len(laboratory.trials) == 1


def test_a_search_that_was_stopped_runs_the_missing_trials_and_chooses_the_same(tmp_path: Path) -> None:
    whole = Laboratory(tmp_path / "whole", best_at(1.0))
    (expected,) = whole.search()
    assert isinstance(expected, Planned)
    for number in (1, 6, 11):
        calls = 0

        def stopped(lr: float, seed: int, number: int = number) -> float:
            nonlocal calls
            calls += 1
            if calls > number:
                raise KeyboardInterrupt
            return best_at(1.0)(lr, seed)

        laboratory = Laboratory(tmp_path / str(number), stopped)
        with pytest.raises(KeyboardInterrupt):
            laboratory.search()
        rest = Laboratory(tmp_path / str(number), best_at(1.0))
        (found,) = rest.search()
        assert isinstance(found, Planned) and found.cell.search == expected.cell.search
        assert found.cell.key == expected.cell.key and len(rest.trials) == len(whole.trials) - number


@pytest.mark.slow
def test_rerun_all_runs_each_trial_once_and_the_added_rate_follows_the_new_choice(tmp_path: Path) -> None:
    Laboratory(tmp_path, best_at(1.0)).search()
    again = Laboratory(tmp_path, best_at(1e-9))
    (found,) = again.search("all")
    assert isinstance(found, Planned) and found.cell.config.train.lr == 1e-4
    assert sorted(again.trials) == sorted((lr, seed) for lr in (1e-4, *GRID) for seed in (1000, 1001))


def test_a_finished_cell_needs_no_trials(tmp_path: Path) -> None:
    laboratory = Laboratory(tmp_path, best_at(3e-3))
    (found,) = laboratory.search()
    assert isinstance(found, Planned)
    record = blank_record(found.cell, 1, environment(None))
    record.status = "ok"
    store.keep_best(record, tmp_path)
    for path in (tmp_path / "trials").rglob("*.json"):
        path.unlink()
    laboratory.rounds.clear()
    run_trials(laboratory.planned, tmp_path, "never", laboratory.run)
    assert laboratory.trials == [] and all_trials(laboratory.planned, tmp_path, "never") == []


@pytest.mark.slow
def test_another_choice_than_that_of_other_seeds_is_reported(tmp_path: Path, capsys) -> None:
    (found,) = Laboratory(tmp_path, best_at(3e-3), "seed=0").search()
    assert isinstance(found, Planned)
    record = blank_record(found.cell, 1, environment(None))
    record.status = "ok"
    store.keep_best(record, tmp_path)
    Laboratory(tmp_path, best_at(1e-2), "seed=1").search("all")
    assert "was trained at train.lr=0.003, and the search now chooses train.lr=0.01" in capsys.readouterr().err


def test_trials_are_not_among_the_records_and_are_a_results_folder(tmp_path: Path) -> None:
    Laboratory(tmp_path, best_at(3e-3)).search()
    assert store.load_all(tmp_path) == []
    trials = store.load_all(trials_folder(tmp_path))
    assert len(trials) == 10 and {record.key.protocol for record in trials} == {"smoke-trial"}
    assert {record.key.seed for record in trials} == {1000, 1001} and len({record.key.hash for record in trials}) == 5


def test_a_dry_run_lists_the_trials_with_their_cost(tmp_path: Path) -> None:
    laboratory = Laboratory(tmp_path, best_at(1.0), "seed=0,1")
    planned = laboratory.planned
    assert len(all_trials(planned, tmp_path, "never")) == 10 and trials_to_add(planned, tmp_path, "never") == 2
    with pytest.raises(StopIteration):
        laboratory.loss = lambda lr, seed: next(iter(())) if lr > 2e-3 else best_at(1.0)(lr, seed)  # type: ignore[call-overload]
        try:
            laboratory.search()
        except RuntimeError as error:  # a generator converts StopIteration
            raise error.__cause__ from None  # type: ignore[misc]
    found = all_trials(planned, tmp_path, "never")
    assert [each.status for each in found] == ["done"] * 4 + ["to run"] * 6
    costs = estimates([each for each in found if each.status == "to run"], tmp_path)
    assert {cost.seconds for cost in costs} == {7.0}
    (unknown, _) = estimates(planned, tmp_path)
    assert unknown.seconds is None  # trials are shorter than cells, so their duration does not count
    assert {each.reason.partition(";")[0] for each in found} == {f"trial of train.lr={lr:g}" for lr in GRID}


def test_the_cost_of_trials_is_that_of_the_training_of_other_records(tmp_path: Path) -> None:
    (cell,) = plan([text for text in CELL if text != "search=lr"], tmp_path)
    record = blank_record(cell.cell, 1, environment(None))
    record.status, record.wall_seconds = "ok", 100.0
    record.training = {"train_seconds": 30.0, "evaluation_seconds": 4.0}
    store.keep_best(record, tmp_path)
    searched = plan(CELL, tmp_path)
    (final,) = estimates(searched, tmp_path)
    assert final.seconds == 100.0
    assert {each.seconds for each in estimates(trials_of(searched[0], tmp_path), tmp_path)} == {34.0}


def trained(results: Path) -> Record:
    (record,) = store.load_all(results)
    return record


def kept(record: Record) -> dict[str, Any]:
    """Return what two runs of a search share: no times, which differ."""
    assert record.search is not None
    trials = [{name: value for name, value in each.items() if name != "seconds"} for each in record.search["trials"]]
    own = {**record.search, "trials": trials, "seconds": None}
    training: Any = record.training
    return {"search": own, "test": record.metrics["test"], "weights": training["final_weights_sha256"]}


@pytest.mark.slow
def test_a_search_trains_the_cell_at_the_chosen_rate_and_a_killed_one_chooses_the_same(tmp_path, forks) -> None:
    calm, killed = Folder(tmp_path / "calm"), Folder(tmp_path / "killed")
    shown = forks.command(calm, "bench", *QUICK, "--dry-run")
    assert shown.stdout.count("smoke-trial") == 3 and "4 cells to run (3 of them trials of a search)" in shown.stderr
    assert "at most 1 more trials" in shown.stderr and not calm.results.exists()
    done = forks.command(calm, "bench", *QUICK)
    assert "trial of train.lr=0.02, seed 1000: lowest validation loss" in done.stderr
    record = trained(calm.results)
    search = record.search
    assert search is not None and record.status == "ok"
    assert record.config["train"]["lr"] == search["chosen_lr"]
    assert record.config["search"]["protocol_lr"] == search["protocol_lr"] == 1e-3
    trials = store.load_all(trials_folder(calm.results))
    means = {each.config["train"]["lr"]: each.training["lowest_validation_loss"] for each in trials}  # type: ignore[index]
    assert search["chosen_lr"] == min(means, key=lambda lr: means[lr]) == record.config["train"]["lr"]
    assert record.key.hash == plan(QUICK, calm.results)[0].cell.key.hash
    for trial in trials:
        assert trial.status == "ok" and not trial.speed and trial.flops is None and trial.extrapolation is None
        assert not trial.metrics  # no trial is tested
    process = forks.start_command(killed, "bench", *QUICK, "hardware.checkpoint_seconds=0")
    wait_for(lambda: list(killed.results.glob("trials/runs/*/*/*/*/seed*.json")), process)
    machine = [*psutil.Process(process.pid).children(recursive=True), psutil.Process(process.pid)]
    for each in machine:
        each.send_signal(signal.SIGKILL)
    process.communicate()
    assert not (killed.results / "runs" / "copy").exists()
    forks.command(killed, "bench", *QUICK)
    assert kept(trained(killed.results)) == kept(record)


def test_a_diverging_search_has_a_record_and_the_next_cell_runs(tmp_path, forks) -> None:
    folder = Folder(tmp_path)
    rates = ["search.rates=[1e8,1e9]", "train.clip=null", "model=local,fnet"]
    done = forks.command(
        folder, "bench", *(text for text in QUICK if "rates" not in text and "model" not in text), *rates, check=False
    )
    assert done.returncode == 1 and "Traceback" not in done.stderr
    records = store.load_all(folder.results)
    assert {record.key.model: record.status for record in records} == {"local": "diverged", "fnet": "diverged"}
    assert all("search: at every learning rate" in record.reason for record in records)


def test_execute_yields_only_the_cells_of_the_plan(tmp_path, monkeypatch) -> None:
    laboratory = Laboratory(tmp_path, best_at(3e-3))
    finals: list[Planned] = []

    def launch(self, jobs):
        planned, folder = [job.planned for job in jobs], jobs[0].results
        if folder == trials_folder(tmp_path):
            codes = [code for *_, code in laboratory.run(planned, folder)]
            yield from map(Outcome, jobs, codes)
            return
        for job in jobs:
            finals.append(job.planned)
            record = replace(blank_record(job.planned.cell, 1, environment(None)), status="ok")
            store.keep_best(record, tmp_path)
            yield Outcome(job, 0)

    monkeypatch.setattr(Local, "launch", launch)
    ((each, record, code),) = execute(laboratory.planned, tmp_path)
    assert finals == [each] and code == 0 and len(laboratory.trials) == 10
    assert each.cell.config.train.lr == 3e-3 and record is not None and record.search == each.cell.search
    assert json.loads(each.cell.as_json())["search"]["chosen_lr"] == 3e-3
    assert type(each.cell).from_json(each.cell.as_json()) == each.cell
