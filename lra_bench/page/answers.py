"""Answers of the page: for each task of the default protocol, which system scores best, runs fastest, or is leanest."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from lra_bench.statistics.paired import MIN_SEEDS
from lra_bench.tables.cell import Cell
from lra_bench.tables.column import Context, Row
from lra_bench.tables.column_cells import relative_speed, score_of_seeds
from lra_bench.tables.formatting import kilobytes, rows_of, score
from lra_bench.tables.summary import best_rows

from .rows import Places

if TYPE_CHECKING:
    import pandas as pd


@dataclass(frozen=True)
class Pick:
    """A system with the property for which it is named."""

    title: str
    name: str
    look: str
    text: str


@dataclass(frozen=True)
class Answer:
    """What the rows of one task show.

    Attributes:
        task: Name of the task.
        about: What the data lacks, and the score of the strongest floor.
        picks: The best row, the fastest and the leanest of those not shown to be worse (with fewer than three seeds, of
            those above the floor), and the best of the user's other rows.
        note: What the comparison of the rows shows, empty if only one is ranked.
    """

    task: str
    about: str
    picks: Sequence[Pick]
    note: str


def answers(board: pd.DataFrame, protocol: str, places: Places) -> list[Answer]:
    """Return the answers for the ranked rows of ``protocol`` in the layout ``long``, in the order of its tasks.

    The speed of a system is that of a stored profile, of the task itself or of another task of the protocol.
    """
    own = board[(board["protocol"] == protocol) & (board["section"] == "ranked")]
    timed = {(row["variant"], row["hardware"]): row for row in rows_of(own) if row["relative_speed"] is not None}
    groups = own.groupby(["task", "task_version", "data_lacks"], sort=False, dropna=False)
    return [_answer(rows_of(members), timed, places) for _, members in groups]


def _answer(rows: Sequence[Row], timed: Mapping[tuple[str, str], Row], places: Places) -> Answer:
    metric = rows[0]["metric"]
    known = [row["floor"] for row in rows if row["floor"] is not None]
    about = [rows[0]["data_lacks"], f"floor {score(known[0], metric)}" if known else ""]
    above, users = best_rows(rows, 1, len(rows))
    picks = []
    if not above:
        note = "no system exceeds the floor in every seed"
    else:
        best = rows[above[0]]
        picks.append(_pick("best score", best, score_of_seeds(best, Context(metric=metric)), places))
        ties = [row for row in rows if row["best"]]
        candidates, among = (ties, "of these") if ties else ([rows[place] for place in above], "above the floor")
        costs = [timed[key] for row in candidates if (key := (row["variant"], row["hardware"])) in timed]
        if costs:
            fastest = max(costs, key=lambda row: row["relative_speed"])
            picks.append(_pick(f"fastest {among}", fastest, relative_speed(fastest, Context()), places))
        if states := [row for row in candidates if row.get("state_bytes") is not None]:
            leanest = min(states, key=lambda row: row["state_bytes"])
            picks.append(_pick(f"smallest state {among}", leanest, Cell(kilobytes(leanest["state_bytes"])), places))
        note = f"{best['seeds']} of {MIN_SEEDS} seeds: shows no difference between systems"
        if ties:
            others = sum(row["rank"] is not None for row in rows) - 1
            note = f"{len(ties) - 1} of {others} other ranked systems not shown to be worse" if others else ""
    picks += [
        _pick("yours", rows[place], score_of_seeds(rows[place], Context(metric=metric)), places) for place in users
    ]
    return Answer(rows[0]["task"], " · ".join(filter(None, about)), picks, note)


def _pick(title: str, row: Row, cell: Cell, places: Places) -> Pick:
    return Pick(title, row["variant"], places.look(row["model"]), cell.plain())
