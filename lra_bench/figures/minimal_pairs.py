"""Score on minimal pairs by label: pairs of examples that differ in one element and in their answer.

The dashed line is the score of random guesses.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from lra_bench.records.schema import Record

from . import slices
from .variants import excluded_unless

if TYPE_CHECKING:
    import pandas as pd
    from matplotlib.axes import Axes

RUN = "run lra-bench bench with a task that has minimal pairs, such as task=listops or task=recall"

exclusions = excluded_unless(lambda record: record.status == "ok" and record.minimal_pairs, "without minimal pairs")


def table(records: Sequence[Record]) -> pd.DataFrame:
    """Return one row per variant and label, averaged over seeds, with the columns of the figure ``slices``."""
    return slices.over_labels(records, [[*_rows(record)] for record in records])


def _rows(record: Record) -> Iterator[dict[str, Any]]:
    assert record.minimal_pairs is not None
    for point in record.minimal_pairs["points"]:
        chance = point["chance"]
        yield {
            **{name: point[name] for name in ("n", "score", "low", "high")},
            "metric": record.metric,
            "slicing": record.minimal_pairs["slicing"],
            "slice": point["label"],
            "floor": chance,
            "floor_name": None if chance is None else "random_guesses",
            "clears_floor": None if chance is None else point["low"] > chance,
        }


def _decorate(ax: Axes, rows: pd.DataFrame) -> None:
    slices.decorate(ax, rows)
    ax.set_ylabel("pairs with both right (%)")


KIND = replace(slices.KIND, decorate=_decorate)
draw = KIND.draw
