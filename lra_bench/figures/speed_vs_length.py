"""The figure of time and peak memory of a step over length."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

import pandas as pd
from matplotlib.axes import Axes

from lra_bench.records.schema import Record
from lra_bench.tables.runs import MODES, measured_alone

from .curves import Curves
from .legend import Entry, bar, ended, words
from .style import length_name, log_ticks, logarithmic
from .variants import IDENTITY, PANEL, SHEET, extent

if TYPE_CHECKING:
    from lra_bench.profiling.comparison.run import Profile

POINT = [*SHEET, *PANEL, *IDENTITY, "batch", "quantity", "mode", "length"]
QUANTITIES = ("time", "memory")
EXPONENTS = ("time_exponent", "memory_exponent")
TIMES = ["median_seconds", "p10_seconds", "p90_seconds"]
MEMORY = {"peak_allocated_bytes": "peak allocated memory", "peak_resident_growth_bytes": "growth of resident memory"}
SPOKEN = {"train": "training", "inference": "inference"}


class _SpeedVsLength(Curves):
    """Time and peak memory of a step over length on logarithmic axes, with their growth exponents.

    Lines are medians over seeds, bars the 10th to 90th percentile of the steps. The legend or the caption states the
    exponents a of N^a if they were fitted, and the shortest length that could not be measured, with the reason.
    """

    remedy = "run lra-bench bench, which times each model at the lengths of measure.speed_lengths"
    missing = "without a step benchmark"
    panel = ("quantity", "mode")
    x, y, label = "length", "value", "length (tokens)"
    of_machine, apart = True, ("batch",)

    def exclusions(self, records: Sequence[Record]) -> list[str]:
        reason = {False: "timed while other programs ran", True: ""}
        return [reason[measured_alone(record)] if record.speed else self.missing for record in records]

    def rows(self, record: Record) -> list[dict[str, Any]]:
        names = ("mode", "length", "status", *TIMES, *MEMORY)
        slopes: Mapping[str, Mapping[str, Any]] = record.growth
        return [
            {name: point[name] for name in names}
            | {"batch": f"batch{point['batch_size']}"}
            | {name: slopes.get(point["mode"], {}).get(name) for name in EXPONENTS}
            for point in record.speed
        ]

    def table(self, records: Sequence[Record]) -> pd.DataFrame:
        """Return one row per variant, quantity, mode and length with the median over seeds.

        ``value`` is in seconds or bytes. ``status`` is ok if any seed measured the length; ``counter`` names the
        measured quantity.
        """
        return self._averaged(self.points(records))

    def of_profile(self, profile: Profile, names: Mapping[str, tuple[str, str]]) -> pd.DataFrame:
        """Return the data of a profile with its first batch size, like ``table``, without the attention kernel math.

        ``names`` maps names of models to their labels and families.
        """
        slopes = {(each["variant"], each["mode"]): each for each in reversed(profile.summaries)}
        shared = {
            "protocol": profile.protocol, "section": "", "task": profile.task, "version": None, "data_lacks": "",
            "modified": "", "hardware": profile.hardware, "reference": "", "seed": 0,
        }  # fmt: skip
        first = profile.rows[0]
        batch = {name: first[name] for name in ("batch_policy", "batch_size")}
        points = []
        for row in profile.rows:
            if row["baseline"] in (None, "default") and all(row[name] == value for name, value in batch.items()):
                label, family = names.get(row["model"], (row["model"], "other"))
                fitted = slopes.get((row["variant"], row["mode"]), {})
                points.append(
                    {name: row[name] for name in ("model", "hash", "mode", "length", "status", *TIMES, *MEMORY)}
                    | {name: fitted.get(name) for name in EXPONENTS}
                    | {"family": family, "name": label + row["variant"].removeprefix(row["model"])}
                    | {"variant": row["variant"], "batch": f"batch{row['batch_size']}", **shared}
                )
        return self._averaged(pd.DataFrame(points))

    def _averaged(self, points: pd.DataFrame) -> pd.DataFrame:
        numbers = [*TIMES, *MEMORY, *EXPONENTS]
        points[numbers] = points[numbers].apply(pd.to_numeric)
        data = pd.concat([_quantity(points, quantity) for quantity in QUANTITIES], ignore_index=True)
        # The order of categories determines the order of panels: time above memory, training before inference.
        order = {"quantity": QUANTITIES, "mode": MODES}
        return data.astype({name: pd.CategoricalDtype(list(found), ordered=True) for name, found in order.items()})

    def title(self, rows: pd.DataFrame, sheet: pd.DataFrame) -> str:
        first = rows.iloc[0]
        return f"{first['quantity']}, {SPOKEN[first['mode']]}"

    def scale(self, rows: pd.DataFrame) -> float:
        return 1e3 if rows["quantity"].iloc[0] == "time" else 1e-6

    def decorate(self, ax: Axes, rows: pd.DataFrame) -> None:
        drawn = rows.dropna(subset=["value"])
        counter = (drawn if len(drawn) else rows)["counter"].iloc[0]
        log_ticks(ax, rows["length"].unique())
        ax.set_ylabel("time per step (ms)" if counter == "time" else f"{counter} (MB)")
        if len(drawn):
            logarithmic(ax, "y", extent(drawn, "value", "low", "high"))

    def remarks(self, rows: pd.DataFrame) -> list[str]:
        parts = []
        for quantity, own in rows.groupby("quantity", observed=True):
            powers = own.sort_values("length").groupby("mode", observed=True)["exponent"].last()
            if powers.notna().any():
                texts = (f"{power:.2f}" if power == power else "–" for power in powers)
                parts.append("\N{NO-BREAK SPACE}".join([str(quantity), ",\N{NO-BREAK SPACE}".join(texts)]))
        failed = rows[rows["status"] != "ok"].sort_values("length").groupby("mode", observed=True).first()
        ends = {
            mode: f"{ended(status)} at {length_name(length)}"
            for mode, status, length in failed[["status", "length"]].itertuples(name=None)
        }
        if len(set(ends.values())) == 1 and len(ends) == rows["mode"].nunique():
            return [*parts, *set(ends.values())]
        return [*parts, *(f"{ends[mode]} in {SPOKEN[mode]}" for mode in MODES if mode in ends)]

    def legend(self, rows: pd.DataFrame) -> list[Entry]:
        modes = ", ".join(SPOKEN[mode] for mode in MODES if mode in set(rows["mode"]))
        fitted = rows["exponent"].notna().any()
        entries = [words(f"numbers: growth exponent a of N^a ({modes})")] if fitted else []
        has_bars = (rows["low"] < rows["high"]).any()
        return [*entries, *([bar("10th to 90th percentile of step times")] if has_bars else [])]


def _quantity(points: pd.DataFrame, quantity: str) -> pd.DataFrame:
    """Return the rows of one quantity under column names shared by both quantities, aggregated over seeds."""
    allocated, resident = MEMORY
    counted = points[allocated].notna().map({True: MEMORY[allocated], False: MEMORY[resident]})
    value, low, high = (points[name] for name in TIMES)
    if quantity == "memory":
        value = points[allocated].fillna(points[resident])
        value = low = high = value.where(value > 0)  # 0 means below the resolution of the counter
    rows = points.assign(
        quantity=quantity, value=value, low=low, high=high, exponent=points[f"{quantity}_exponent"],
        counter="time" if quantity == "time" else counted, measured=points["status"] == "ok",
    ).sort_values([*POINT, "seed"])  # fmt: skip
    groups = rows.groupby(POINT, dropna=False)
    status = groups["status"].first().where(~groups["measured"].any(), "ok")
    data = groups[["value", "low", "high", "exponent"]].median()
    return data.assign(seeds=groups["seed"].nunique(), status=status, counter=groups["counter"].first()).reset_index()


speed_vs_length = _SpeedVsLength()
