"""Score over length relative to the training length, with the floor of each length."""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING

from lra_bench.records.schema import Record

from .length_panels import PANEL, averaged, draw_panels, place_of
from .style import looks

if TYPE_CHECKING:
    import pandas as pd
    from matplotlib.figure import Figure


def draw(records: Iterable[Record]) -> tuple[Figure, pd.DataFrame]:
    """A panel per task, protocol and way to make other lengths, a line per variant, and the numbers drawn.

    Bars are 95 % intervals: of the mean over seeds where there are two or more, else over examples. The dashed line is
    the floor at each length, the vertical one the training length. Lengths that could not be measured are missing, and
    curves with something set for evaluation alone stand in ``evaluation_knobs``.
    """
    data = averaged(records)
    data = data[data["knob"] == ""]
    look_of = looks(zip(data["model"], data["label"], strict=True))
    figure = draw_panels(data, PANEL, "label", lambda row: look_of[row["model"], row["label"]], place_of)
    return figure, data
