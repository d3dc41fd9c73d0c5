"""Searches (``search=lr``, ``search=optuna``): configurations of their trials and of the final cell, and their names.

All functions are pure; ``lra_bench/grid/search.py`` runs the trials, and ``lra_bench/measurements/rate_search.py``
contains the rules that choose the rate or the options.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from copy import deepcopy
from dataclasses import is_dataclass, replace
from typing import Any

from lra_bench.contracts import UserError

from .schema import CellConfig, SearchOptions, TrackerOptions

NONE, LR, OPTUNA, TRIAL = "none", "lr", "optuna", "trial"

SUFFIXES = {NONE: "", LR: "-searched", OPTUNA: "-optuna", TRIAL: "-trial"}
"""Ends of the protocol's name in keys, by value of ``search.name``."""

RULE = (
    "lowest mean over the search seeds of the best validation loss; infinite if a trial diverged; the lower rate if "
    "two are equal; a choice at the end of the grid adds one rate"
)
"""The rule that chooses the rate. It is part of the hash of searched cells."""

OPTIONS_RULE = (
    "trials by Optuna's TPESampler(seed=0); lowest mean over the search seeds of the best validation loss; infinite if "
    "a trial diverged; the earlier trial if two are equal"
)
"""The rule that chooses the options of ``search=optuna``. It is part of the hash, too."""

SCALES = ("log", "linear")
"""Last entries of lists in ``search.space`` that are ranges."""


def searches(config: CellConfig) -> bool:
    """Return whether the learning rate or other options of a cell are searched."""
    return config.search.name in (LR, OPTUNA)


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

    Of a searched cell these are the grid, or the space and the number of trials, the seeds, the rule and the rate of
    the protocol, never the choice. Of a trial it is only the rate of the protocol, which determines the rates of
    parameters with their own hints, so that searches with different grids share trials.
    """
    search = config.search
    if search.name == NONE:
        return None
    found: dict[str, Any] = {"name": search.name, "protocol_lr": protocol_lr(config)}
    if search.name == TRIAL:
        return found
    if search.name == OPTUNA:
        budget = {"space": search.space, "seeds": sorted(search.seeds), "trials": search.trials}
        return {**found, **budget, "rule": OPTIONS_RULE}
    grid = {"rates": sorted(search.rates), "seeds": sorted(search.seeds), "factor": search.factor}
    return {**found, **grid, "rule": RULE}


def protocol_lr(config: CellConfig) -> float:
    """Return the learning rate of the protocol, which ``train.lr`` no longer contains in trials and final cells."""
    return config.train.lr if config.search.protocol_lr is None else config.search.protocol_lr


def trial_config(config: CellConfig, options: Mapping[str, Any], seed: int) -> CellConfig:
    """Return the configuration of the trial of a searched cell with these values of options and one seed.

    Trials are not copied to a tracker.
    """
    search = SearchOptions(name=TRIAL, protocol_lr=None if is_of_protocol(config) else protocol_lr(config))
    tracker = TrackerOptions(name=NONE)
    return replace(with_options(config, options), seed=seed, search=search, tracker=tracker)


def final_config(config: CellConfig, options: Mapping[str, Any]) -> CellConfig:
    """Return the configuration of a searched cell with the chosen options; its hash is that of ``config``."""
    search = replace(config.search, protocol_lr=protocol_lr(config))
    return replace(with_options(config, options), search=search)


def with_options(config: CellConfig, options: Mapping[str, Any]) -> CellConfig:
    """Return a configuration with other values of options, by their names, such as ``train.lr``.

    The values are not checked. Raises ``UserError`` if an option is inside one that is no section.
    """
    for option, value in options.items():
        section, *parents, last = option.split(".")
        part = deepcopy(getattr(config, section))
        node = part
        for name in parents:
            node = node.setdefault(name, {}) if isinstance(node, dict) else getattr(node, name, None)
        if isinstance(node, dict):
            node[last] = value
        elif is_dataclass(node):
            setattr(node, last, value)
        else:
            raise UserError(f"{option}: there is no such option")
        config = replace(config, **{section: part})
    return config


def options_of(config: CellConfig | Mapping[str, Any], names: Iterable[str]) -> dict[str, Any]:
    """Return the values of options by name, such as ``train.lr``; an option that is not set has the value None."""
    found = {}
    for option in names:
        node: Any = config
        for name in option.split("."):
            node = node.get(name) if isinstance(node, Mapping) else getattr(node, name, None)
        found[option] = node
    return found


def is_range(values: Sequence[Any]) -> bool:
    """Return whether an entry of ``search.space`` is a range, not a list of choices."""
    return len(values) == 3 and values[-1] in SCALES


def at_first_values(config: CellConfig) -> CellConfig:
    """Return the configuration with the first values in ``search.space``, the same before and after the choice."""
    if config.search.name != OPTUNA:
        return config
    return with_options(config, {option: values[0] for option, values in config.search.space.items()})
