"""The trials of ``search=optuna``, proposed by Optuna.

No state of Optuna is stored: its sampler has a fixed seed, so the proposals are a function of the losses of the earlier
trials, whose records are read. Therefore the same command resumes a search.
"""

from __future__ import annotations

import math
import statistics
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from lra_bench.config.schema import CellConfig
from lra_bench.config.search import is_range, with_options
from lra_bench.config.serialization import as_dict, from_dict
from lra_bench.contracts import UserError, install_command

from .status import Planned


def has_ended(trial: Planned) -> bool:
    """Return whether a search continues after a trial."""
    return trial.record is not None and trial.record.status in ("ok", "diverged")


def proposed(config: CellConfig, plan: Callable[[Mapping[str, Any], int], Planned]) -> list[Planned]:
    """Return the trials of a searched cell in the order of the proposals: those that have ended, then the next ones.

    A proposal is one choice of options, trained with each seed of the search. Options may be proposed again.

    Args:
        config: The configuration of the cell.
        plan: Function that returns the trial with these options and this seed.

    Raises:
        UserError: If Optuna is not installed or a value in ``search.space`` is refused.
    """
    search = config.search
    for option, values in search.space.items():
        for value in values[:2] if is_range(values) else values:
            from_dict(as_dict(with_options(config, {option: value})))
    try:
        import optuna
    except ImportError as error:
        raise UserError(f"search=optuna: needs optuna; install it with {install_command('optuna')}") from error
    optuna.logging.set_verbosity(optuna.logging.WARNING)
    study = optuna.create_study(sampler=optuna.samplers.TPESampler(seed=0))
    space = {option: _distribution(optuna.distributions, values) for option, values in search.space.items()}
    found: list[Planned] = []
    for _ in range(search.trials):
        proposal = study.ask(space)
        options = {
            name: float(f"{value:.6g}") if isinstance(value, float) else value
            for name, value in proposal.params.items()
        }
        own = [plan(options, seed) for seed in search.seeds]
        found += own
        if not all(map(has_ended, own)):
            break
        study.tell(proposal, statistics.fmean(map(_loss, own)))
    return found


def _distribution(kinds: Any, values: Sequence[Any]) -> Any:
    if not is_range(values):
        return kinds.CategoricalDistribution(values)
    low, high, scale = values
    kind = kinds.IntDistribution if type(low) is type(high) is int else kinds.FloatDistribution
    return kind(low, high, log=scale == "log")


def _loss(trial: Planned) -> float:
    training = trial.record and trial.record.status == "ok" and trial.record.training
    loss = (training or {}).get("lowest_validation_loss")
    return math.inf if loss is None else loss
