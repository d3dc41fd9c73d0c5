"""Heat map of the scores of all models on all tasks, coloured by skill.

Skill is the score normalised so that the strongest floor of the task is 0 and a perfect score is 1; a score without a
floor has no colour. Rows are sorted by the number of tasks with a score, then by their mean rank. Scores of rows in
which no seed exceeds the floor are grey, and with seeds on two levels the number of seeds that exceed it is printed.
Bold scores are the best with three or more seeds that exceed the floor, and those not shown to be worse. Cells without
a score contain the status of the run, empty cells were not run.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from lra_bench.records.schema import Record

from .legend import Entry, words
from .task_table import Kind, averaged, colour_entries, floor_text, levels_entries, square
from .variants import IDENTITY, PANEL, SHEET, panel_title, scores, with_claims

if TYPE_CHECKING:
    import pandas as pd

RUN = "run lra-bench bench"


def exclusions(records: Sequence[Record]) -> list[str]:
    """Return for each record the reason why it is not drawn, empty if it is drawn."""
    return ["" if r.status != "ok" or r.score() is not None else "without a score" for r in records]


def table(records: Sequence[Record]) -> pd.DataFrame:
    """Return one row per variant and task, averaged over seeds; seeds without a score are used if there is no other."""
    import pandas as pd

    key = [*SHEET, *PANEL, *IDENTITY]
    everything = averaged(scores(records))
    scored = everything["score"].notna()
    if scored.any():
        everything = pd.concat([with_claims(everything[scored], records, pairs=False), everything[~scored]])
    columns = (
        "metric", "score", "low", "high", "seeds", "seed_scores", "learned", "two_levels", "best", "floor", "skill",
        "status",
    )  # fmt: skip
    return everything.reindex(columns=[*key, *columns])


def _best_first(rows: pd.DataFrame) -> list[tuple[str, str]]:
    """Return the variants sorted by the number of tasks with a score, then by their mean rank on them."""
    sign = rows["metric"].map(lambda metric: 1.0 if metric == "bits_per_character" else -1.0)
    place = (sign * rows["score"]).groupby([rows[name] for name in PANEL], dropna=False).rank(pct=True)
    means = rows.assign(place=place).groupby(["model", "label"]).agg(known=("place", "count"), place=("place", "mean"))
    means["known"] *= -1
    return list(means.sort_values(["known", "place"], kind="stable").index)


def _text(entry: Mapping[Any, Any]) -> str:
    score = entry["score"]
    return f"{score:.2f}" if entry["metric"] == "bits_per_character" else f"{100 * score:.1f}"


def _legend(rows: pd.DataFrame) -> list[Entry]:
    unknown = (rows["score"].notna() & rows["skill"].isna()).any()
    entries = [*colour_entries(rows), *([square("white", "floor unknown")] if unknown else []), *levels_entries(rows)]
    return [*entries, *([words("bold: best, or not shown to be worse")] if rows["best"].eq(True).any() else [])]


KIND = Kind(
    text=_text,
    order=_best_first,
    title=lambda group, rows: panel_title(group, rows) + floor_text(group),
    legend=_legend,
    column_inches=0.62,
)
draw = KIND.draw
