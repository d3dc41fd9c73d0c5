"""Figures of validation scores and losses: over training steps, learning rates, and positions."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import pandas as pd
from matplotlib.axes import Axes

from lra_bench.records import tables
from lra_bench.records.schema import Record

from .curves import Curves
from .legend import BLOCK, Entry, floor_entry, seed_band, words
from .lengths import TRAINED, times
from .palette import AT_FLOOR, BELOW_FLOOR, BLACK
from .style import TINY, log_ticks
from .variants import IDENTITY, PANEL, SHEET, VARIANT, band, floor_of, units_of

CHOICE: dict[str, Any] = {"color": BLACK, "marker": "o", "markerfacecolor": "none", "linestyle": "none"}
"""Look of the mark of a chosen rate, as keyword arguments of matplotlib."""


class _LearningCurves(Curves):
    """Validation score over training steps.

    Lines are means over seeds, in a band of the range over seeds. The dashed line is the strongest floor, and the
    region of scores that are not better is shaded. A curve is grey if no seed is better than the floor at any
    evaluation.
    """

    remedy = "run lra-bench bench, which writes learning curves next to each record"
    missing = "without learning curves"
    x, label = "step", "training step"
    bars = False
    columns = 3

    def has_data(self, record: Record) -> object:
        return "curves" in record.artifacts and record.metric

    def rows(self, record: Record) -> list[dict[str, Any]]:
        if (curve := tables.validation_curve(record)) is None:
            return []
        training = record.training or {}
        split, floor = "test", floor_of(record)
        if (score := training.get("validation_floor")) is not None:
            split, floor = "validation", {"floor": score, "floor_name": training.get("validation_floor_name")}
        constant = {"metric": record.metric, "floor_split": split, **floor}
        return [{**constant, "step": step, "score": score} for step, score in zip(*curve, strict=True)]

    def table(self, records: Sequence[Record]) -> pd.DataFrame:
        """Return one row per variant and validated step.

        ``floor`` is the strongest floor on ``floor_split``: the validation split, or the test split if the record does
        not contain the floor on the validation split.
        """
        points = self.points(records)
        if points.empty:
            return points
        return band(points, [*VARIANT, "metric", "step"], "score", floor_split=("floor_split", "first"))

    def at_floor(self, rows: pd.DataFrame) -> bool:
        """Return whether no score is better than the floor, of any seed; False if the floor is unknown."""
        floor = rows["floor"].iloc[0]
        if rows["metric"].iloc[0] == "bits_per_character":
            return bool(rows["low"].min() >= floor)
        return bool(rows["high"].max() <= floor)

    def legend(self, rows: pd.DataFrame) -> list[Entry]:
        entries = []
        if len(floors := self.floors(rows)):
            splits = sorted(floors["floor_split"].unique(), reverse=True)
            shaded = Entry("shaded: scores that are not better than the floor", {"color": BELOW_FLOOR, **BLOCK})
            entries = [*floor_entry(floors, f"on the {' or '.join(splits)} split"), shaded]
        if any(self.at_floor(own) for _, own in rows.groupby([*PANEL, "label"], dropna=False)):
            entries.append(Entry("grey curves: never better than the floor, in any seed", {"color": AT_FLOOR}))
        return [*entries, *seed_band(rows)]

    def decorate(self, ax: Axes, rows: pd.DataFrame) -> None:
        if len(floors := self.floors(rows)):
            worst = ax.get_ylim()[rows["metric"].iloc[0] == "bits_per_character"]
            beyond: dict[str, Any] = {"color": BELOW_FLOOR, "linewidth": 0, "zorder": 0.5, "gid": "below floor"}
            ax.axhspan(floors["floor"].mean(), worst, **beyond)
        ax.set_xlim(0, 1.03 * rows["step"].max())
        ax.locator_params(axis="x", nbins=4)
        ax.set_ylabel(f"validation {units_of(rows)[1]}")

    def floors(self, rows: pd.DataFrame) -> pd.DataFrame:
        """Return the floors of the validation split, or those of the test split for panels without them."""
        known = rows.dropna(subset=["floor"])
        of_validation = known["floor_split"] == "validation"
        any_of_panel = of_validation.groupby([known[name] for name in PANEL], dropna=False).transform("any")
        return known[of_validation | ~any_of_panel]


class _RateSearch(Curves):
    """Validation loss over the learning rate of searched cells, with the chosen rates.

    Bands are the range over the search seeds. A vertical line is the rate of the protocol, if all variants share it.
    """

    remedy = "run lra-bench bench search=lr, which tries several learning rates for each system"
    missing = "without a search of the learning rate"
    x, label = "lr", "learning rate"
    y, y_label = "loss", "validation loss (nats) ↓"
    bars = False
    columns = 3

    def has_data(self, record: Record) -> object:
        return record.search is not None and any(rate["loss"] is not None for rate in record.search["rates"])

    def rows(self, record: Record) -> list[dict[str, Any]]:
        search = record.search
        assert search is not None  # otherwise the record is excluded
        constant = {"edge": search["edge"], "protocol_lr": search["protocol_lr"], "seeds": len(search["seeds"])}
        found = []
        for rate in search["rates"]:
            of_rate = (trial["loss"] for trial in search["trials"] if trial["lr"] == rate["lr"])
            losses = [loss for loss in of_rate if loss is not None and rate["loss"] is not None]
            range_of_seeds = {"low": min(losses, default=None), "high": max(losses, default=None)}
            validation = {"validation_score": rate["score"], "validation_skill": rate["skill"]}
            own = {"lr": rate["lr"], "loss": rate["loss"], **range_of_seeds, **validation}
            found.append({**own, "chosen": rate["lr"] == search["chosen_lr"], **constant})
        return found

    def table(self, records: Sequence[Record]) -> pd.DataFrame:
        """Return one row per variant and rate: the mean over the search seeds, and their range ``low`` to ``high``.

        The seeds of a cell share one search. Losses of rates at which a trial diverged are missing. Rows whose choice
        is at an end of the grid are on the same sheet as others.
        """
        numbers = dict.fromkeys(("loss", "low", "high", "validation_score", "validation_skill"), float)
        data = self.points(records).astype(numbers).sort_values("seed", kind="stable")
        data["section"] = data["section"].replace("edge", "ranked")
        return data.drop_duplicates([*VARIANT, "lr"]).drop(columns="seed").reset_index(drop=True)

    def decorate(self, ax: Axes, rows: pd.DataFrame) -> None:
        log_ticks(ax, rows["lr"].unique(), lambda rate: f"{rate:.0e}".replace("e-0", "e-"))
        ax.tick_params(axis="x", labelsize=TINY)
        if rows["protocol_lr"].nunique() == 1:
            ax.axvline(rows["protocol_lr"].iloc[0], zorder=1, gid="protocol", **TRAINED)
        chosen = rows[rows["chosen"]]
        ax.plot(chosen["lr"], chosen["loss"], markersize=9, markeredgewidth=0.8, zorder=4, gid="chosen", **CHOICE)

    def legend(self, rows: pd.DataFrame) -> list[Entry]:
        entries = [Entry("chosen rate", {**CHOICE, "markersize": 7}, "circles")]
        if rows.groupby(PANEL, dropna=False)["protocol_lr"].nunique().eq(1).any():
            entries.append(Entry("rate of the protocol", TRAINED, "vertical line"))
        if rows["loss"].isna().any():
            entries.append(words("missing points: a trial diverged"))
        return [*entries, *seed_band(rows)]


class _LossByPosition(Curves):
    """Loss of a language model over the position in its context, at the training length and at longer contexts.

    Lines are means over seeds, bands the range of the seeds. Points are drawn at the last token of their bin. The
    dashed line is the score of the strongest floor on all scored tokens; floors by position are not recorded. The
    vertical line is the training length: a curve that rises beyond it means that longer contexts make predictions
    worse.
    """

    remedy = "run lra-bench bench task=enwik8, which evaluates the contexts of measure.extrapolation_ratios"
    missing = "without a loss by position"
    panel = (*PANEL, "train_length", "label", "knob")
    subtitle = ("label", "knob")
    x, y, label = "last", "bits_per_character", "position in the context (tokens)"
    bars = False
    lines = ("ratio", "context")

    def rows(self, record: Record) -> Sequence[dict[str, Any]]:
        if record.status != "ok" or (section := record.extrapolation) is None:
            return []
        floors = {
            point["ratio"]: {"floor": point["floor"], "floor_name": point["floor_name"]}
            for point in section["points"]
            if point["floor"] is not None
        }
        unknown = {"floor": None, "floor_name": None}
        length = {"train_length": section["train_length"]}
        return [{**length, **floors.get(each["ratio"], unknown), **each} for each in section["by_position"]]

    def table(self, records: Sequence[Record]) -> pd.DataFrame:
        by = [*SHEET, *PANEL, "train_length", *IDENTITY, "knob", "ratio", "length", "first", "last"]
        data = band(self.points(records), by, "bits_per_character", n=("n", "sum"))
        return data.assign(context=data["ratio"].map(lambda ratio: f"context {times(ratio)}"))

    def decorate(self, ax: Axes, rows: pd.DataFrame) -> None:
        ax.axvline(rows["train_length"].iloc[0], zorder=1, **TRAINED)
        log_ticks(ax, rows["last"].unique())

    def floors(self, rows: pd.DataFrame) -> pd.DataFrame:
        return rows.drop_duplicates("ratio")

    def legend(self, rows: pd.DataFrame) -> list[Entry]:
        lengths = ", ".join(f"{length:,}" for length in sorted(rows["train_length"].unique()))
        trained = Entry(f"training length ({lengths})", TRAINED, "vertical line")
        return [*floor_entry(rows, "mean over positions"), *seed_band(rows), trained]


learning_curves, rate_search, loss_by_position = _LearningCurves(), _RateSearch(), _LossByPosition()
