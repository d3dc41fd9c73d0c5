"""The search of the learning rate as a section of the record, which ``records.rate_search`` fills."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from lra_bench.measurement import Column, Display, Measurement, number
from lra_bench.records.rate_search import RateSearch


def rate_searched(run: Any) -> bool | None:
    """Return whether a search chose the rate, of the cell or for the protocol; None without searched rates."""
    return True if run.record.search else run.record.config.get("protocol", {}).get("searched")


def searched_lr(run: Any) -> float | None:
    """Return the learning rate that a search chose, None if it was not searched."""
    chosen = (run.record.search or {}).get("chosen_lr", run.record.config.get("train", {}).get("lr"))
    return chosen if rate_searched(run) else None


class Search(Measurement):
    """How the learning rate of the cell was chosen, if it was searched."""

    name = "search"
    title = "Search of the learning rate"
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
        edge = ", at an end of the grid" if section["edge"] else ""
        chosen = "none" if section["chosen_lr"] is None else f"{section['chosen_lr']:g}{edge}"
        seeds = ", ".join(map(str, section["seeds"]))
        yield "searched rate", f"{chosen} (protocol: {section['protocol_lr']:g}; seeds {seeds}; {section['rule']})"
        losses = (
            f"{rate['lr']:g}: {'a trial diverged or failed' if rate['loss'] is None else number(rate['loss'])}"
            for rate in section["rates"]
        )
        yield "validation loss", ", ".join(losses)
        if section["robustness"] is not None:
            yield "rates near best", f"{section['robustness']:.0%} of the grid reach 90 % of the best skill"
        seconds = "" if section["seconds"] is None else f", {number(section['seconds'])} s"
        yield "trials", f"{section['trial_count']}{seconds}"
        if section["hints"]:
            hints = (f"{name} {hint['ratio']:.3g} times ({hint['hint']})" for name, hint in section["hints"].items())
            yield "rates by hint", ", ".join(hints)
