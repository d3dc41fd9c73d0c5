"""Heat maps of the scores of all models on all tasks, and of their skill on the tasks of a group."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import pandas as pd

from lra_bench.config.task_groups import task_group
from lra_bench.measurements.lengths import length_points, ratio_name
from lra_bench.records.schema import Record
from lra_bench.tables.runs import Run

from .legend import Entry, words
from .lengths import times
from .palette import WHITE
from .task_table import TaskTable, averaged, square
from .variants import PANEL, VARIANT, scores, with_claims

NUMBERS = ("metric", "score", "low", "high", "seeds", "seed_scores", "learned", "two_levels")
GROUP = "abilities"


class _HeatMap(TaskTable):
    """Heat map of the scores of all models on all tasks, coloured by skill.

    Skill is the score normalised so that the strongest floor of the task is 0 and a perfect score is 1; a score without
    a floor has no colour. Rows are sorted by the number of tasks with a score, then by their mean rank. Scores of rows
    in which no seed is shown to exceed the floor are grey, and with seeds on two levels the number of seeds that exceed
    it is printed. Bold scores are the best with three or more seeds that exceed the floor, and those not shown to be
    worse. Cells without a score contain the status of the run, empty cells were not run.
    """

    def has_data(self, record: Record) -> object:
        return record.status != "ok" or record.score() is not None

    def table(self, records: Sequence[Record]) -> pd.DataFrame:
        """Return one row per variant and task, aggregated over the seeds with a score, otherwise over all seeds."""
        data = averaged(scores(records))
        scored = data["score"].notna()
        if scored.any():
            data = pd.concat([with_claims(data[scored], records, pairs=False), data[~scored]])
        return data.reindex(columns=[*VARIANT, *NUMBERS, "best", "floor", "skill", "status"])

    def worth(self, rows: pd.DataFrame) -> pd.Series:
        sign = rows["metric"].map(lambda metric: 1.0 if metric == "bits_per_character" else -1.0)
        return -(sign * rows["score"]).groupby([rows[name] for name in PANEL], dropna=False).rank(pct=True)

    def text(self, entry: Mapping[Any, Any]) -> str:
        score = entry["score"]
        return f"{score:.2f}" if entry["metric"] == "bits_per_character" else f"{100 * score:.1f}"

    def legend(self, rows: pd.DataFrame) -> list[Entry]:
        unknown = (rows["score"].notna() & rows["skill"].isna()).any()
        bold = [words("bold: best, or not shown to be worse")] if rows["best"].eq(True).any() else []
        return [*super().legend(rows), *([square(WHITE, "floor unknown", "white")] if unknown else []), *bold]


class _Abilities(TaskTable):
    """Heat map of the skill of all models on the tasks of the group ``abilities``.

    Skill is the score normalised so that the strongest floor of the task is 0 and a perfect score is 1; it is 0 below
    the floor. Rows with scores on more tasks come first, then those with a higher mean skill. Numbers are grey if no
    seed exceeds the floor, and with seeds on two levels the number of seeds that exceed it is printed instead. The
    heading of a column contains the floor, and the length of the examples if it is not that of the training. Cells
    without a score contain the status of the run, empty cells were not run.
    """

    remedy = f"run lra-bench bench task={GROUP}"
    column_inches = 0.8
    sort_tasks = False

    def exclusions(self, records: Sequence[Record]) -> list[str]:
        group = task_group(GROUP)
        return [
            self._exclusion(record, group.measured_at.get(record.key.task, 1.0))
            if record.key.task in group.tasks
            else f"of tasks outside of the group {GROUP}"
            for record in records
        ]

    def _exclusion(self, record: Record, ratio: float) -> str:
        if record.status != "ok":
            return ""
        measured = _measured(record, ratio)
        if measured is None:
            return f"without a point at {times(ratio)} the training length"
        if measured.get("score", record.score()) is None and measured.get("status", "ok") == "ok":
            return self.missing
        return "" if measured.get("floor", record.best_floor()) is not None else "without a floor"

    def table(self, records: Sequence[Record]) -> pd.DataFrame:
        """Return one row per variant and task, in the order of the group, aggregated over seeds as in ``heat_map``.

        ``ratio`` is the length of the examples relative to the training length, ``measured_at`` in the file of the
        group. ``skill`` is 0 if the mean over seeds does not exceed the floor.
        """
        group = task_group(GROUP)
        measured: list[dict[Any, Any]] = scores(records).to_dict("records")
        for row, record in zip(measured, records, strict=True):
            row["ratio"] = group.measured_at.get(record.key.task, 1.0)
            row.update(_measured(record, row["ratio"]) or {})
        columns = [*VARIANT, "ratio", *NUMBERS, "floor", "floor_name", "skill", "status"]
        data = averaged(pd.DataFrame(measured)).reindex(columns=columns)
        data = data.sort_values("task", key=lambda tasks: tasks.map(group.tasks.index), kind="stable")
        return data.assign(skill=pd.to_numeric(data["skill"]).clip(0, 1))

    def worth(self, rows: pd.DataFrame) -> pd.Series:
        return rows["skill"]

    def text(self, entry: Mapping[Any, Any]) -> str:
        return f"{100 * entry['skill']:.0f}"

    def title(self, rows: pd.DataFrame, sheet: pd.DataFrame) -> str:
        ratio = rows["ratio"].iloc[0]
        task, line, floor = super().title(rows, sheet).partition("\n")
        return task + (f" {times(ratio)}" if ratio != 1 else "") + line + floor

    def legend(self, rows: pd.DataFrame) -> list[Entry]:
        lengths = " or ".join(times(ratio) for ratio in sorted(rows["ratio"].unique()) if ratio != 1)
        longer = [words(f"{lengths}: examples of this multiple of the training length")] if lengths else []
        return [*super().legend(rows), words("numbers: skill in percent"), *longer]


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
    numbers = {name: point[name] for name in names}  # type: ignore[literal-required]
    return {**numbers, "examples": point["n"], "clears_floor": Run(record).clears_floor_at(point)}


heat_map, abilities = _HeatMap(), _Abilities()
