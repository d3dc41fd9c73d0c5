"""What options that are set for evaluation alone do to each trained variant on longer rows."""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING

from lra_bench.records.schema import Record

from .length_panels import PANEL, averaged, draw_panels, place_of
from .style import BLACK, COLOURS, LINES, MARKERS, Look
from .variants import IDENTITY

if TYPE_CHECKING:
    import pandas as pd
    from matplotlib.figure import Figure

AS_TRAINED = "as trained"


def draw(records: Iterable[Record]) -> tuple[Figure, pd.DataFrame]:
    """A panel per task and variant that has knobs, with a line as it was trained and one for each knob; the numbers.

    Bars, floors and the training length are as in the figure of extrapolation.
    """
    data = averaged(records)
    turned = [*PANEL, *IDENTITY]
    has = data.groupby(turned, dropna=False)["knob"].transform("nunique") > 1
    # A curve as trained comes first, and is drawn below the others.
    data = data[has & (data["ratio"] >= 1)].sort_values([*turned, "knob", "ratio"], ignore_index=True)
    data["setting"] = data["knob"].where(data["knob"] != "", AS_TRAINED)
    looks = {AS_TRAINED: Look(BLACK, "o", "-")}
    for number, knob in enumerate(sorted(set(data["knob"]) - {""})):
        line = LINES[1 + number % (len(LINES) - 1)]
        looks[knob] = Look(COLOURS[number % len(COLOURS)], MARKERS[number % len(MARKERS)], line)
    figure = draw_panels(
        data,
        turned,
        "setting",
        lambda row: looks[row["setting"]],
        lambda row: f"{place_of(row)}\n{row['label']}",
        most_columns=2,
    )
    return figure, data
