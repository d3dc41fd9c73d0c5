"""The search of the learning rate or other options: the rules that choose, and the section of the record.

The rules are pure functions of the trials, each of which trained with one rate, or one choice of options, and one seed.
"""

from __future__ import annotations

import json
import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from statistics import fmean
from typing import Any, TypedDict

from lra_bench.contracts.measurement import Column, Display, Measurement, number
from lra_bench.records.sections import HintedRate

RATE = "train.lr"
NEAR_BEST = 0.9
"""Share of the best skill that a rate must reach to count in the robustness."""


class TrialOptions(TypedDict, total=False):
    """Values of the searched options of ``search=optuna``."""

    options: dict[str, Any]


class Trial(TrialOptions):
    """One trial of a search.

    ``loss`` is the lowest validation loss, None if the trial diverged or has not ended; ``score`` and ``skill`` are
    those of the same evaluation. ``seconds`` is the wall-clock time of the trial.
    """

    lr: float
    seed: int
    status: str
    loss: float | None
    score: float | None
    skill: float | None
    seconds: float | None


class Rate(TypedDict):
    """Means over the seeds of one rate, None if a trial diverged; ``added`` is true for rates outside the grid."""

    lr: float
    loss: float | None
    score: float | None
    skill: float | None
    added: bool


class OptionSearch(TypedDict, total=False):
    """Fields of ``search=optuna``: ``search.space``, and the chosen options, None if none could be chosen."""

    space: dict[str, list[Any]]
    chosen: dict[str, Any] | None


class RateSearch(OptionSearch):
    """Section ``search`` of a record: how the learning rate or other options of the cell were chosen.

    With ``search=optuna``, ``grid`` and ``rates`` are empty, and ``chosen_lr`` is the rate of the cell.

    Attributes:
        grid: The rates of the grid.
        seeds: The seeds of the trials.
        factor: Ratio of an added rate to the end of the grid.
        rule: The rule that chose the rate.
        protocol_lr: The rate of the protocol.
        chosen_lr: The chosen rate, None if all trials diverged or the search did not end.
        edge: Whether the chosen rate is the lowest or highest of all rates, after one was added.
        robustness: Share of the rates of the grid whose skill is at least ``NEAR_BEST`` of the best; None if the best
            skill is not above 0 or unknown.
        rates: The means of each rate, in the order of the rates.
        trials: The trials, in the order of rates and seeds.
        trial_count: Number of trials.
        seconds: Wall-clock time of all trials, None if that of one is unknown.
        hints: Rates of parameters with their own hints, by the name of the parameter; empty if the model has none or
            was not built.
    """

    grid: list[float]
    seeds: list[int]
    factor: float
    rule: str
    protocol_lr: float
    chosen_lr: float | None
    edge: bool
    robustness: float | None
    rates: list[Rate]
    trials: list[Trial]
    trial_count: int
    seconds: float | None
    hints: dict[str, HintedRate]


def rate_searched(run: Any) -> bool | None:
    """Return whether a search chose the rate, of the cell or for the protocol; None without searched rates."""
    if run.record.search and RATE in run.record.search.get("space", {RATE: ()}):
        return True
    return run.record.config.get("protocol", {}).get("searched")


def searched_lr(run: Any) -> float | None:
    """Return the learning rate that a search chose, None if it was not searched."""
    chosen = (run.record.search or {}).get("chosen_lr", run.record.config.get("train", {}).get("lr"))
    return chosen if rate_searched(run) else None


class Search(Measurement):
    """How the learning rate of the cell was chosen, if it was searched."""

    name = "search"
    title = "Hyperparameter search"
    Result = RateSearch
    columns = (
        Column(
            name="searched_lr",
            help="learning rate that the search chose by validation loss, the same for all seeds, for this row or for "
            "the protocol; edge marks a rate at an end of the grid; empty if the rate was not searched",
            run=searched_lr,
            dtype="float64",
            display=Display(
                "searched rate",
                "{:g}",
                tail=lambda row, context: "(edge)" if row["section"] == "edge" else "",
                cell=lambda row, context: "not searched" if row["rate_searched"] is False else None,
                first="ascending",
            ),
        ),
        Column(
            name="rate_searched",
            help="whether a search chose the learning rate, for this row or for the protocol; empty without a search "
            "if the protocol contains no searched rates",
            run=rate_searched,
        ),
        Column(
            name="lr_robustness",
            help="share of the learning rates of the grid that reach 90 % of the best validation skill in the search; "
            "empty if the best is not above 0",
            source="search.robustness",
            dtype="float64",
            display=Display("rates near best", "percent"),
        ),
        Column(
            name="search_trials",
            help="number of training runs of the search of the learning rate, shared by all seeds",
            source="search.trial_count",
            dtype="Int64",
        ),
        Column(
            "search_seconds", "wall-clock time of all trials of the search, seconds", "search.seconds", dtype="float64"
        ),
    )

    @classmethod
    def facts(cls, section: RateSearch) -> Iterator[tuple[str, str]]:
        """Yield the choice, the loss of each rate, and rates of parameters with hints."""
        seeds = ", ".join(map(str, section["seeds"]))
        searched = "space" in section
        if searched:
            options = section.get("chosen")
            choice = "none" if options is None else described(options)
            yield "searched options", f"{choice} (seeds {seeds}; {section['rule']})"
            yield "space", described(section["space"])
        else:
            edge = ", at an end of the grid" if section["edge"] else ""
            choice = "none" if section["chosen_lr"] is None else f"{section['chosen_lr']:g}{edge}"
            yield "searched rate", f"{choice} (protocol: {section['protocol_lr']:g}; seeds {seeds}; {section['rule']})"
            losses = (
                f"{rate['lr']:g}: {'a trial diverged or failed' if rate['loss'] is None else number(rate['loss'])}"
                for rate in section["rates"]
            )
            yield "validation loss", ", ".join(losses)
        if section["robustness"] is not None:  # with searched options it is unknown
            yield "rates near best", f"{section['robustness']:.0%} of the grid reach 90 % of the best skill"
        seconds = "" if section["seconds"] is None else f", {number(section['seconds'])} s"
        yield "trials", f"{section['trial_count']}{seconds}"
        if section["hints"] and not searched:
            hints = (f"{name} {hint['ratio']:.3g} times ({hint['hint']})" for name, hint in section["hints"].items())
            yield "rates by hint", ", ".join(hints)


def described(options: Mapping[str, Any]) -> str:
    """Return options as text, ``train.lr=0.003, backbone.depth=2``."""
    texts = {name: f"{value:g}" if isinstance(value, float) else str(value) for name, value in options.items()}
    return ", ".join(f"{name}={text}" for name, text in texts.items())


def chosen_options(search: RateSearch) -> dict[str, Any] | None:
    """Return the chosen values by option, or None if no value could be chosen."""
    if "space" in search:
        return search.get("chosen")
    return None if search["chosen_lr"] is None else {RATE: search["chosen_lr"]}


def choose(losses: Mapping[float, float]) -> float | None:
    """Return the rate with the lowest loss, the lower rate if two are equal, None if no loss is finite."""
    finite = {lr: loss for lr, loss in losses.items() if math.isfinite(loss)}
    return min(finite, key=lambda lr: (finite[lr], lr)) if finite else None


def added_rates(grid: Sequence[float], losses: Mapping[float, float], factor: float) -> list[float]:
    """Return the rates that are added to a grid because its choice is at an end, rounded to six digits."""
    chosen = choose({lr: losses[lr] for lr in grid})
    low, high = min(grid), max(grid)
    added = [rate for end, rate in ((low, low / factor), (high, high * factor)) if chosen == end]
    return [float(f"{rate:.6g}") for rate in added]


def mean_losses(trials: Iterable[Trial]) -> dict[float, float]:
    """Return the mean over seeds of the loss of each rate, infinite if a trial of it has no loss."""
    return {
        lr: fmean([math.inf if trial["loss"] is None else trial["loss"] for trial in own])
        for lr, own in _by_rate(trials).items()
    }


def robustness(grid: Sequence[float], rates: Sequence[Rate]) -> float | None:
    """Return the share of the rates of the grid whose skill is at least ``NEAR_BEST`` of the best of all rates.

    The result is None if no skill is known or the best is not above 0. A rate of which a trial diverged does not reach
    the best.
    """
    known = {rate["lr"]: rate["skill"] for rate in rates if rate["skill"] is not None}
    best = max(known.values(), default=0.0)
    if best <= 0:
        return None
    return sum(known.get(lr, -math.inf) >= NEAR_BEST * best for lr in grid) / len(grid)


def rate_search(
    grid: Sequence[float], seeds: Sequence[int], factor: float, rule: str, protocol_lr: float, trials: Sequence[Trial]
) -> RateSearch:
    """Return the section ``search`` for the trials of a search; the rates outside ``grid`` are those that were added.

    The trials of every rate that was tried must have ended, otherwise no rate is chosen.
    """
    grid = sorted(grid)
    trials = sorted(trials, key=lambda trial: (trial["lr"], trial["seed"]))
    rates = [_rate(lr, own, lr not in grid) for lr, own in _by_rate(trials).items()]
    ended = all(trial["status"] in ("ok", "diverged") for trial in trials)
    losses = mean_losses(trials)
    chosen = choose(losses) if ended and set(grid) <= set(losses) else None
    return {
        "grid": grid,
        "seeds": list(seeds),
        "factor": factor,
        "rule": rule,
        "protocol_lr": protocol_lr,
        "chosen_lr": chosen,
        "edge": chosen is not None and chosen in (min(losses), max(losses)),
        "robustness": robustness(grid, rates) if chosen is not None else None,
        "rates": rates,
        "trials": trials,
        "trial_count": len(trials),
        "seconds": total_seconds(trials),
        "hints": {},
    }


def option_search(
    space: Mapping[str, list[Any]],
    seeds: Sequence[int],
    count: int,
    factor: float,
    rule: str,
    protocol_lr: float,
    trials: Sequence[Trial],
) -> RateSearch:
    """Return the section ``search`` of ``search=optuna`` for its trials, in the order in which they were proposed.

    Nothing is chosen unless ``count`` proposals have ended with all ``seeds``.
    """
    losses: dict[str, float] = {}
    for first in range(0, len(trials), len(seeds)):
        own = trials[first : first + len(seeds)]
        losses.setdefault(json.dumps(own[0]["options"]), *mean_losses(own).values())
    ended = len(trials) == count * len(seeds) and all(each["status"] in ("ok", "diverged") for each in trials)
    best = min(losses, key=lambda each: losses[each]) if ended else ""
    chosen = json.loads(best) if best and math.isfinite(losses[best]) else None
    return {
        **rate_search([], seeds, factor, rule, protocol_lr, []),
        "chosen_lr": None if chosen is None else chosen.get(RATE, protocol_lr),
        "trials": list(trials),
        "trial_count": len(trials),
        "seconds": total_seconds(trials),
        "space": dict(space),
        "chosen": chosen,
    }


def total_seconds(trials: Iterable[Trial]) -> float | None:
    """Return the wall-clock time of all trials, None if that of one is unknown."""
    seconds = [trial["seconds"] for trial in trials]
    return None if None in seconds else math.fsum(filter(None, seconds))


def trial(lr: float, seed: int, status: str, training: Mapping[str, Any], seconds: float | None) -> Trial:
    """Return the trial whose record has this status and section ``training``; its loss counts only if it is ok."""
    known = training if status == "ok" else {}
    return {
        "lr": lr,
        "seed": seed,
        "status": status,
        "loss": known.get("lowest_validation_loss"),
        "score": known.get("validation_score_at_lowest_loss"),
        "skill": known.get("validation_skill_at_lowest_loss"),
        "seconds": seconds,
    }


def _by_rate(trials: Iterable[Trial]) -> dict[float, list[Trial]]:
    found: dict[float, list[Trial]] = {}
    for each in trials:
        found.setdefault(each["lr"], []).append(each)
    return found


def _rate(lr: float, own: Sequence[Trial], added: bool) -> Rate:
    columns: Iterable[list[Any]] = ([trial[name] for trial in own] for name in ("loss", "score", "skill"))
    loss, score, skill = (None if None in values else fmean(values) for values in columns)
    return {"lr": lr, "loss": loss, "score": score, "skill": skill, "added": added}
