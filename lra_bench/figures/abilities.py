"""Heat map of the skill of all models on the tasks of the group ``abilities``.

Skill is the score normalised so that the strongest floor of the task is 0 and a perfect score is 1; it is 0 below the
floor. Rows with scores on more tasks come first, then those with a higher mean skill. Numbers are grey if no seed
exceeds the floor, and with seeds on two levels the number of seeds that exceed it is printed instead. The heading of a
column contains the floor, and the length of the examples if it is not that of the training. Cells without a score
contain the status of the run, empty cells were not run.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from lra_bench.config.task_groups import task_group
from lra_bench.measurements.lengths import length_points, ratio_name
from lra_bench.records.schema import Record
from lra_bench.tables.runs import Run

from .legend import Entry, words
from .task_table import Kind, averaged, colour_entries, floor_text, levels_entries
from .variants import IDENTITY, PANEL, SHEET, panel_title, scores

if TYPE_CHECKING:
    import pandas as pd

GROUP = "abilities"
RUN = f"run lra-bench bench task={GROUP}"


def exclusions(records: Sequence[Record]) -> list[str]:
    """Return for each record the reason why it is not drawn, empty if it is drawn."""
    group = task_group(GROUP)
    return [
        _exclusion(record, group.measured_at.get(record.key.task, 1.0))
        if record.key.task in group.tasks
        else f"of tasks outside of the group {GROUP}"
        for record in records
    ]


def _exclusion(record: Record, ratio: float) -> str:
    if record.status != "ok":
        return ""
    measured = _measured(record, ratio)
    if measured is None:
        return f"without a point at {_times(ratio)} the training length"
    if measured.get("score", record.score()) is None and measured.get("status", "ok") == "ok":
        return "without a score"
    return "" if measured.get("floor", record.best_floor()) is not None else "without a floor"


def table(records: Sequence[Record]) -> pd.DataFrame:
    """Return one row per variant and task, averaged over seeds; seeds without a score are used if there is no other.

    Tasks are in the order of the group. ``ratio`` is the length of the examples relative to the training length: 1, or
    that of ``measured_at`` in the file of the group. ``skill`` is 0 if the mean over seeds does not exceed the floor.
    """
    import pandas as pd

    group = task_group(GROUP)
    measured: list[dict[Any, Any]] = scores(records).to_dict("records")
    for row, record in zip(measured, records, strict=True):
        row["ratio"] = group.measured_at.get(record.key.task, 1.0)
        row.update(_measured(record, row["ratio"]) or {})
    key = [*SHEET, *PANEL, *IDENTITY]
    data = averaged(pd.DataFrame(measured))
    columns = (
        "ratio", "metric", "score", "low", "high", "seeds", "seed_scores", "learned", "two_levels", "floor",
        "floor_name", "skill", "status",
    )  # fmt: skip
    data = data.reindex(columns=[*key, *columns]).sort_values(
        "task", key=lambda tasks: tasks.map(group.tasks.index), kind="stable"
    )
    return data.assign(skill=pd.to_numeric(data["skill"]).clip(0, 1))


def _measured(record: Record, ratio: float) -> dict[str, Any] | None:
    """Return the columns of a record that differ at another length than that of the training.

    The result is empty at the training length, None if the length was not evaluated. A run that did not finish has no
    floor at another length.
    """
    if ratio == 1:
        return {}
    if record.status != "ok":
        return {"floor": None, "floor_name": None}
    point = length_points(record.extrapolation).get(ratio_name(ratio))
    if point is None:
        return None
    names = ("status", "score", "low", "high", "floor", "floor_name", "skill")
    return {
        **{name: point[name] for name in names},  # type: ignore[literal-required]
        "examples": point["n"],
        "clears_floor": Run(record).clears_floor_at(point),
    }


def _by_mean_skill(rows: pd.DataFrame) -> list[tuple[str, str]]:
    found = rows.groupby(["model", "label"]).agg(known=("skill", "count"), skill=("skill", "mean"))
    return list(found.sort_values(["known", "skill"], ascending=False, kind="stable").index)


def _text(entry: Mapping[Any, Any]) -> str:
    return f"{100 * entry['skill']:.0f}"


def _title(rows: pd.DataFrame, sheet_rows: pd.DataFrame) -> str:
    ratio = rows["ratio"].iloc[0]
    length = f" {_times(ratio)}" if ratio != 1 else ""
    return panel_title(rows, sheet_rows) + length + floor_text(rows)


def _times(ratio: float) -> str:
    return ratio_name(ratio).replace("x", "×")


def _legend(rows: pd.DataFrame) -> list[Entry]:
    lengths = " or ".join(_times(ratio) for ratio in sorted(rows["ratio"].unique()) if ratio != 1)
    return [
        *colour_entries(rows),
        words("numbers: skill in percent"),
        *([words(f"{lengths}: examples of this multiple of the training length")] if lengths else []),
        *levels_entries(rows),
    ]


KIND = Kind(text=_text, order=_by_mean_skill, title=_title, legend=_legend, column_inches=0.8, sort_tasks=False)

draw = KIND.draw
