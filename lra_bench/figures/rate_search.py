"""Validation loss over the learning rate of searched cells, with the chosen rates.

Bands are the range over the search seeds. A vertical line is the rate of the protocol, if all variants share it.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Any

from lra_bench.measurements.rate_search import RateSearch
from lra_bench.records.schema import Record

from .curves import Curves, limits
from .legend import Entry, seed_band
from .palette import BLACK, GREY
from .variants import IDENTITY, PANEL, SHEET, excluded_unless, extent, panel_title, placed

if TYPE_CHECKING:
    import pandas as pd
    from matplotlib.axes import Axes

RUN = "run lra-bench bench search=lr, which tries several learning rates for each system"
CELL = [*SHEET, *PANEL, *IDENTITY]
CHOICE: dict[str, Any] = {"marker": "o", "markersize": 9, "markerfacecolor": "none", "linestyle": "none"}
"""Look of the mark of a chosen rate, as keyword arguments of matplotlib."""

exclusions = excluded_unless(lambda record: _has_losses(record.search), "without a search of the learning rate")


def table(records: Sequence[Record]) -> pd.DataFrame:
    """Return one row per variant and rate with the mean over the search seeds; ``low`` and ``high`` are their range.

    The seeds of a cell share one search. Losses of rates at which a trial diverged are missing. Rows whose choice is at
    an end of the grid are on the same sheet as others.
    """
    data = placed(records, [[*_rows(record)] for record in records])
    data["section"] = data["section"].replace("edge", "ranked")
    return (
        data.sort_values("seed", kind="stable")
        .drop_duplicates([*CELL, "lr"])
        .drop(columns="seed")
        .reset_index(drop=True)
    )


def _has_losses(search: RateSearch | None) -> bool:
    return search is not None and any(rate["loss"] is not None for rate in search["rates"])


def _rows(record: Record) -> Iterator[dict[str, Any]]:
    search = record.search
    assert search is not None  # otherwise the record is excluded
    for rate in search["rates"]:
        own = [trial["loss"] for trial in search["trials"] if trial["lr"] == rate["lr"] and trial["loss"] is not None]
        known = rate["loss"] is not None
        yield {
            "lr": rate["lr"],
            "loss": rate["loss"] if known else math.nan,
            "low": min(own) if known else math.nan,
            "high": max(own) if known else math.nan,
            "validation_score": rate["score"] if rate["score"] is not None else math.nan,
            "validation_skill": rate["skill"] if rate["skill"] is not None else math.nan,
            "chosen": rate["lr"] == search["chosen_lr"],
            "edge": search["edge"],
            "protocol_lr": search["protocol_lr"],
            "seeds": len(search["seeds"]),
        }


def _decorate(ax: Axes, rows: pd.DataFrame) -> None:
    from matplotlib.ticker import NullLocator

    rates = sorted(rows["lr"].unique())
    ax.set_xscale("log")
    ax.set_xlim(rates[0] / 1.5, rates[-1] * 1.5)
    ax.xaxis.set_minor_locator(NullLocator())
    ax.set_xticks(rates, [f"{rate:.0e}".replace("e-0", "e-") for rate in rates], fontsize=6)
    ax.locator_params(axis="y", nbins=6, steps=[1, 2, 5, 10])
    limits(ax, *extent(rows, "low", "high"))
    if rows["protocol_lr"].nunique() == 1:
        ax.axvline(rows["protocol_lr"].iloc[0], color=GREY, linewidth=0.8, zorder=1, gid="protocol")
    chosen = rows[rows["chosen"]]
    ax.plot(chosen["lr"], chosen["loss"], color=BLACK, markeredgewidth=0.8, zorder=4, gid="chosen", **CHOICE)
    ax.set_xlabel("learning rate")
    ax.set_ylabel("validation loss (nats) ↓")


def _legend(rows: pd.DataFrame) -> list[Entry]:
    entries = [Entry("chosen rate", {"color": BLACK, **CHOICE, "markersize": 7})]
    if rows.groupby(PANEL, dropna=False)["protocol_lr"].nunique().eq(1).any():
        entries.append(Entry("rate of the protocol", {"color": GREY, "linewidth": 0.8}))
    if rows["loss"].isna().any():
        entries.append(Entry("missing points: a trial diverged", {"linestyle": "none"}))
    return [*entries, *seed_band(rows)]


KIND = Curves(
    panel=PANEL, x="lr", y="loss", bars=False, title=panel_title, decorate=_decorate,
    legend=_legend,
)  # fmt: skip
draw = KIND.draw
