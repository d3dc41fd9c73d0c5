"""Time and peak memory of a step over length on logarithmic axes, with their growth exponents.

Lines are medians over seeds, bars the 10th to 90th percentile of the steps. The legend states the exponents a of N^a if
they were fitted, and the shortest length that could not be measured, with the reason.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from lra_bench.records.schema import Record
from lra_bench.tables.runs import MODES, measured_alone

from .curves import Curves
from .legend import DOT, Entry, bar, ended
from .style import length_name, lengths_below, logarithmic
from .variants import IDENTITY, PANEL, SHEET, extent, placed

if TYPE_CHECKING:
    import pandas as pd
    from matplotlib.axes import Axes

RUN = "run lra-bench bench, which times each model at the lengths of measure.speed_lengths"
POINT = [*SHEET, *PANEL, *IDENTITY, "batch", "quantity", "mode", "length"]
QUANTITIES = ("time", "memory")
TIMES = ["median_seconds", "p10_seconds", "p90_seconds"]
MEMORY = {"peak_allocated_bytes": "peak allocated memory", "peak_resident_growth_bytes": "growth of resident memory"}
SPOKEN = {"train": "training", "inference": "inference"}


def exclusions(records: Sequence[Record]) -> list[str]:
    """Return for each record the reason why it is not drawn, empty if it is drawn."""
    reason = {False: "timed while other programs ran", True: ""}
    return [reason[measured_alone(record)] if record.speed else "without a step benchmark" for record in records]


def table(records: Sequence[Record]) -> pd.DataFrame:
    """Return one row per variant, quantity, mode and length with the median over seeds.

    ``value`` is in seconds or bytes. ``status`` is ok if any seed measured the length; ``counter`` names the measured
    quantity.
    """
    import pandas as pd

    points = placed(records, [[*_points(record)] for record in records])
    numbers = [*TIMES, *MEMORY, *(f"{quantity}_exponent" for quantity in QUANTITIES)]
    points[numbers] = points[numbers].apply(pd.to_numeric)
    data = pd.concat([_quantity(points, quantity) for quantity in QUANTITIES], ignore_index=True)
    # The order of categories determines the order of panels: time above memory, training before inference.
    order = {"quantity": QUANTITIES, "mode": MODES}
    return data.astype({name: pd.CategoricalDtype(list(found), ordered=True) for name, found in order.items()})


def _points(record: Record) -> Iterator[dict[str, Any]]:
    for point in record.speed:
        slopes: Mapping[str, Any] = record.growth.get(point["mode"], {})
        yield {
            **{name: point[name] for name in ("mode", "length", "status", *TIMES, *MEMORY)},
            "batch": f"batch{point['batch_size']}",
            **{f"{quantity}_exponent": slopes.get(f"{quantity}_exponent") for quantity in QUANTITIES},
        }


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


def _title(rows: pd.DataFrame, sheet: pd.DataFrame) -> str:
    first = rows.iloc[0]
    return f"{first['quantity']}, {SPOKEN[first['mode']]}"


def _decorate(ax: Axes, rows: pd.DataFrame) -> None:
    drawn = rows.dropna(subset=["value"])
    counter = (drawn if len(drawn) else rows)["counter"].iloc[0]
    lengths_below(ax, rows["length"].unique())
    ax.set_xlabel("length (tokens)")
    ax.set_ylabel("time per step (ms)" if counter == "time" else f"{counter} (MB)", fontsize=7)
    if len(drawn):
        scale = _scale(rows)
        low, high = extent(drawn, "value", "low", "high")
        ax.set_ylim(scale * low / 1.3, scale * high * 1.3)
        logarithmic(ax, "y")


def _scale(rows: pd.DataFrame) -> float:
    return 1e3 if rows["quantity"].iloc[0] == "time" else 1e-6


def _name(label: str, own: pd.DataFrame) -> str:
    """Return the variant, its exponents in training and inference, and the first length that was not measured."""
    parts, ends = [label], dict[str, str]()
    points = own[["quantity", "mode", "length", "status", "exponent"]].itertuples(index=False, name=None)
    powers: dict[str, dict[str, float]] = {}
    for quantity, mode, length, status, exponent in sorted(points, key=lambda point: point[2]):
        powers.setdefault(quantity, {})[mode] = exponent
        if status != "ok":
            ends.setdefault(mode, f"{ended(status)} at {length_name(length)}")
    for quantity in QUANTITIES:
        found = [powers[quantity][mode] for mode in MODES if mode in powers.get(quantity, {})]
        if any(power == power for power in found):
            parts.append(f"{quantity}\N{NO-BREAK SPACE}{_powers(found)}")
    if len(set(ends.values())) == 1 and len(ends) == own["mode"].nunique():
        return DOT.join([*parts, *set(ends.values())])
    return DOT.join([*parts, *(f"{ends[mode]} in {SPOKEN[mode]}" for mode in MODES if mode in ends)])


def _powers(exponents: Sequence[float]) -> str:
    return ",\N{NO-BREAK SPACE}".join(f"{power:.2f}" if power == power else "–" for power in exponents)


def _legend(rows: pd.DataFrame) -> list[Entry]:
    """Return the legend entries that explain the numbers after the names and the bars."""
    modes = ", ".join(SPOKEN[mode] for mode in MODES if mode in set(rows["mode"]))
    fitted = rows["exponent"].notna().any()
    entries = [Entry(f"numbers: growth exponent a of N^a ({modes})", {"linestyle": "none"})] if fitted else []
    return [*entries, *([bar("10th to 90th percentile of step times")] if (rows["low"] < rows["high"]).any() else [])]


KIND = Curves(
    panel=("quantity", "mode"), x="length", y="value", bars=True, title=_title,
    decorate=_decorate, scale=_scale, name=_name, document=("hardware",), apart=("batch",), columns=2,
    legend=_legend,
)  # fmt: skip
draw = KIND.draw
