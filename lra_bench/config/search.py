"""The search of the learning rate (``search=lr``): configurations of its trials and of the final cell, and their names.

All functions are pure; ``lra_bench/grid/search.py`` runs the trials, and ``lra_bench/measurements/rate_search.py``
contains the rule that chooses the rate.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from .schema import CellConfig, SearchOptions, TrackerOptions

NONE, LR, TRIAL = "none", "lr", "trial"
NAMES = (NONE, LR, TRIAL)
"""Values of ``search.name``."""

SUFFIXES = {NONE: "", LR: "-searched", TRIAL: "-trial"}
"""Ends of the protocol's name in keys, by value of ``search.name``."""

RULE = (
    "lowest mean over the search seeds of the best validation loss; infinite if a trial diverged; the lower rate if "
    "two are equal; a choice at the end of the grid adds one rate"
)
"""The rule that chooses the rate. It is part of the hash of searched cells."""


def searches(config: CellConfig) -> bool:
    """Return whether the learning rate of a cell is searched."""
    return config.search.name == LR


def is_trial(config: CellConfig) -> bool:
    """Return whether a cell is a trial of a search, of which only training and validation are run."""
    return config.search.name == TRIAL


def protocol_label(config: CellConfig) -> str:
    """Return the protocol of a key: name, version and, of searched cells and trials, the end in ``SUFFIXES``.

    Therefore searched and other cells are never in the same ranking, unless the search is that of the protocol.
    """
    ranked = searches(config) and is_of_protocol(config)
    return config.protocol.label + ("" if ranked else SUFFIXES[config.search.name])


def is_of_protocol(config: CellConfig) -> bool:
    """Return whether the search of a cell is that which chose the rates in the protocol."""
    return config.search.protocol == config.protocol.name


def reference_lr(config: CellConfig) -> float | None:
    """Return the rate to which rates of parameters with hints keep their ratio, None for ``train.lr``."""
    return None if is_of_protocol(config) else config.search.protocol_lr


def hashed(config: CellConfig) -> dict[str, Any] | None:
    """Return what the hash of a cell covers of its search, None without a search.

    Of a searched cell these are the grid, the seeds, the rule and the rate of the protocol, never the chosen rate. Of a
    trial it is only the rate of the protocol, which determines the rates of parameters with their own hints, so that
    searches with different grids share trials.
    """
    search = config.search
    if search.name == NONE:
        return None
    found: dict[str, Any] = {"name": search.name, "protocol_lr": protocol_lr(config)}
    if search.name == TRIAL:
        return found
    grid = {"rates": sorted(search.rates), "seeds": sorted(search.seeds), "factor": search.factor}
    return {**found, **grid, "rule": RULE}


def protocol_lr(config: CellConfig) -> float:
    """Return the learning rate of the protocol, which ``train.lr`` no longer contains in trials and final cells."""
    return config.train.lr if config.search.protocol_lr is None else config.search.protocol_lr


def trial_config(config: CellConfig, lr: float, seed: int) -> CellConfig:
    """Return the configuration of the trial of a searched cell with one rate and seed.

    Trials are not copied to a tracker.
    """
    search = SearchOptions(name=TRIAL, protocol_lr=None if is_of_protocol(config) else protocol_lr(config))
    tracker = TrackerOptions(name=NONE)
    return replace(config, seed=seed, train=replace(config.train, lr=lr), search=search, tracker=tracker)


def final_config(config: CellConfig, lr: float) -> CellConfig:
    """Return the configuration of a searched cell with the chosen rate; its hash is that of ``config``."""
    search = replace(config.search, protocol_lr=protocol_lr(config))
    return replace(config, train=replace(config.train, lr=lr), search=search)
