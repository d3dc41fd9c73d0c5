"""Run the trials of searched cells (``search=lr``, ``search=optuna``) and choose their learning rates or options.

A trial is a cell of its own. Its record is in the folder ``trials`` of the results folder, which is organised as a
results folder, so trials resume like other cells and no table shows them. They are shared by all seeds of a cell.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

from lra_bench.cells.cell import Cell
from lra_bench.cells.subprocess import WRONG_INPUT, write_unmeasured_record
from lra_bench.config.hashing import config_hash
from lra_bench.config.import_path import importable
from lra_bench.config.objects import build_task
from lra_bench.config.search import (
    OPTIONS_RULE,
    OPTUNA,
    RULE,
    final_config,
    options_of,
    protocol_label,
    protocol_lr,
    searches,
    trial_config,
)
from lra_bench.contracts import TaskSpec, UserError
from lra_bench.measurements.rate_search import (
    RATE,
    RateSearch,
    added_rates,
    chosen_options,
    described,
    mean_losses,
    option_search,
    rate_search,
    trial,
)
from lra_bench.progress import say
from lra_bench.records import store
from lra_bench.records.key import CellKey

from .option_search import has_ended, proposed
from .status import EndedCell, Planned, examined, must_run

TRIALS = "trials"
"""Folder of the results folder that contains the records of trials."""

Run = Callable[[Sequence[Planned], Path], Iterable[EndedCell]]
"""A function that runs cells with their records in a results folder, and yields each as it ends."""


def trials_folder(results: Path) -> Path:
    """Return the results folder of the trials."""
    return results / TRIALS


def is_searched(planned: Planned, rerun: str) -> bool:
    """Return whether trials are needed: the cell uses a search and has to run."""
    return searches(planned.cell.config) and must_run(planned, rerun)


def trials_of(planned: Planned, results: Path) -> list[Planned]:
    """Return the trials of a searched cell: those of the grid, and if they have ended, those of added rates.

    With ``search=optuna`` they are those of all proposals up to the first that has not ended.
    """
    search = planned.cell.config.search
    config_dir = Path(planned.cell.config_dir) if planned.cell.config_dir else None
    with importable(config_dir):
        plan = partial(_planned, planned.cell, spec=build_task(planned.cell.config).spec, results=results)
        if search.name == OPTUNA:
            return proposed(planned.cell.config, plan)
        found = [plan({RATE: lr}, seed) for lr in sorted(search.rates) for seed in search.seeds]
        if all(map(has_ended, found)):
            losses = mean_losses(_section(planned.cell, found)["trials"])
            added = added_rates(search.rates, losses, search.factor)
            found += [plan({RATE: lr}, seed) for lr in added for seed in search.seeds]
    return found


def _planned(cell: Cell, options: Mapping[str, Any], seed: int, spec: TaskSpec, results: Path) -> Planned:
    config = trial_config(cell.config, options, seed)
    hash = config_hash(config, cell.fingerprint)
    own = replace(cell, key=replace(cell.key, protocol=protocol_label(config), hash=hash, seed=seed), config=config)
    return examined(own, spec, trials_folder(results), f"trial of {described(options)}")


def all_trials(planned: Iterable[Planned], results: Path, rerun: str) -> list[Planned]:
    """Return the trials of all cells whose learning rate must be chosen, without duplicates."""
    found = {each.cell.key: each for cell in _distinct(planned, rerun) for each in trials_of(cell, results)}
    return list(found.values())


def trials_to_add(planned: Iterable[Planned], results: Path, rerun: str) -> int:
    """Return how many trials searches may add: if those of their grids have not ended, or further proposals."""
    count = 0
    for cell in _distinct(planned, rerun):
        trials, search = trials_of(cell, results), cell.cell.config.search
        if search.name == OPTUNA:
            count += search.trials * len(search.seeds) - len(trials)
        elif any(must_run(each, rerun) for each in trials):
            count += len(search.seeds)
    return count


def run_trials(planned: Sequence[Planned], results: Path, rerun: str, run: Run) -> None:
    """Run all trials that the cells need.

    The first trial of each search runs before the others, so that a wrong option is reported once. A search is not
    continued after a trial that ended neither with ``ok`` nor with ``diverged``.

    Args:
        planned: The cells of a plan; those whose learning rate need not be chosen are ignored.
        results: The results folder.
        rerun: Value of ``--rerun``, also for the trials.
        run: The function that runs trials.
    """
    tried: set[CellKey] = set()
    searching = _distinct(planned, rerun)
    while searching:
        batch: dict[CellKey, Planned] = {}
        still = []
        for cell in searching:
            if left := _next_trials(cell, results, rerun, tried):
                still.append(cell)
                batch |= {each.cell.key: each for each in left}
        searching = still
        for each, record, _ in run(list(batch.values()), trials_folder(results)) if batch else ():
            key = each.cell.key
            tried.add(key)
            if record is not None:
                loss = (record.training or {}).get("lowest_validation_loss")
                known = record.status == "ok" and loss is not None
                text = f"lowest validation loss {loss:.4g}" if known else record.status
                say(f"{key.task}/{key.model}: {_note(each)}, seed {key.seed}: {text}")


def _next_trials(cell: Planned, results: Path, rerun: str, tried: Collection[CellKey]) -> list[Planned]:
    """Return the trials that a search runs next, empty if it has ended or if one of its trials has failed."""
    trials = trials_of(cell, results)
    left = [each for each in trials if each.cell.key not in tried and must_run(each, rerun)]
    if any(each not in left and not has_ended(each) for each in trials):
        return []
    if not any(each.cell.key in tried or each.record is not None for each in trials):
        return left[:1]
    grid = set(cell.cell.config.search.rates)
    # The rates that are added depend on the trials of the grid, which may be run again.
    return [each for each in left if each.cell.config.train.lr in grid] or left


def _distinct(planned: Iterable[Planned], rerun: str) -> list[Planned]:
    """Return one cell of each search that must run, of those that differ in their seeds only."""
    found: dict[CellKey, Planned] = {}
    for each in planned:
        if is_searched(each, rerun):
            found.setdefault(replace(each.cell.key, seed=0), each)
    return list(found.values())


def with_choice(planned: Planned, results: Path) -> Planned | EndedCell:
    """Return a searched cell with the chosen rate or options, or its outcome if none could be chosen.

    If the trials failed, or all of them diverged, the outcome contains a record with this status.
    """
    trials = trials_of(planned, results)
    search = _section(planned.cell, trials)
    cell = replace(planned.cell, search=search)
    if (chosen := chosen_options(search)) is not None:
        _warn_of_other_choices(cell, chosen, results)
        return replace(planned, cell=replace(cell, config=final_config(cell.config, chosen)))
    failed = next((each for each in trials if not has_ended(each)), None)
    if failed is None and planned.cell.config.search.name == OPTUNA:
        status, reason = "diverged", "search: with every choice of options a trial diverged"
    elif failed is None:
        rates = [each["lr"] for each in search["rates"]]
        status = "diverged"
        reason = f"search: at every learning rate from {min(rates):g} to {max(rates):g} a trial diverged"
    elif failed.record is None:
        return planned, None, WRONG_INPUT
    else:
        status = failed.record.status
        where = f"the {_note(failed)} with seed {failed.cell.key.seed}"
        reason = f"search: {where} ended: {failed.record.reason or status}"
    record = write_unmeasured_record(cell, planned.attempt, results, status, reason)
    return planned, record, 0 if status == "incompatible" else 1


def _warn_of_other_choices(cell: Cell, chosen: Mapping[str, Any], results: Path) -> None:
    """Print a line if other seeds of the cell were trained with another choice, because their trials were run again."""
    for path in store.paths(results, f"{cell.key.folder()}/seed*.json"):
        with suppress(UserError):
            record = store.load(path)
            other = chosen_options(record.search) if record.search is not None else None
            if other is not None and other != chosen:
                say(
                    f"{record.key}: was trained at {described(other)}, and the search now chooses {described(chosen)}; "
                    "--rerun all trains all seeds alike"
                )


def _section(cell: Cell, trials: Iterable[Planned]) -> RateSearch:
    """Return the section ``search`` of the record of a cell, from the trials that have a record."""
    search = cell.config.search
    recorded = [(each.cell.config, record) for each in trials if (record := each.record) is not None]
    found = [
        trial(config.train.lr, config.seed, record.status, record.training or {}, record.wall_seconds)
        for config, record in recorded
    ]
    if search.name == OPTUNA:
        for each, (config, _) in zip(found, recorded, strict=True):
            each["options"] = options_of(config, search.space)
        own = (search.space, search.seeds, search.trials, search.factor, OPTIONS_RULE, protocol_lr(cell.config))
        return option_search(*own, found)
    return rate_search(search.rates, search.seeds, search.factor, RULE, protocol_lr(cell.config), found)


def _note(trial: Planned) -> str:
    """Return the options of a trial, ``trial of train.lr=0.003``."""
    return trial.reason.partition(";")[0]
