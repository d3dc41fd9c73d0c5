"""Score of each trained variant over longer lengths, with options set for evaluation only.

There is one panel per task and variant, with one line as trained and one per option. The dashed line is the floor at
each length, the vertical line the training length.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import TYPE_CHECKING

from lra_bench.records.schema import Record

from . import extrapolation
from .curves import Curves
from .extrapolation import LENGTHENED, averaged, length_title, scored_points
from .variants import IDENTITY, SHEET, excluded_unless

if TYPE_CHECKING:
    import pandas as pd

RUN = "run lra-bench bench or evaluate on a model that has such options (measure.extrapolation_knobs)"
AS_TRAINED = "as trained"

exclusions = excluded_unless(
    lambda record: any(knob and point["knob"] for _, knob, point in scored_points(record)),
    "without a score with an option set for evaluation only",
)


def table(records: Sequence[Record]) -> pd.DataFrame:
    """Return one row per variant with several settings, setting and length from the training length on."""
    data = averaged(records)
    several = data.groupby([*SHEET, *LENGTHENED, *IDENTITY], dropna=False)["knob"].transform("nunique") > 1
    data = data[several & (data["ratio"] >= 1)]
    return data.assign(setting=data["knob"].where(data["knob"] != "", AS_TRAINED))


def _title(rows: pd.DataFrame, sheet: pd.DataFrame) -> str:
    return f"{length_title(rows, sheet)} · {rows['label'].iloc[0]}"


KIND = replace(
    extrapolation.KIND,
    panel=[*LENGTHENED, "label"],
    title=_title,
    lines=("knob", "setting"),
    columns=2,
    name=Curves.name,
)
draw = KIND.draw
