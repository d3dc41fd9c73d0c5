"""The long table of the leaderboard: one row per variant, task, protocol and hardware, with ranks and claims."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from functools import cache
from typing import Any

import pandas as pd

from lra_bench.contracts.measurement import Column, Rule
from lra_bench.progress import bar
from lra_bench.records.machines import combine_machines
from lra_bench.records.schema import Record
from lra_bench.statistics.paired import MIN_SEEDS

from . import columns as registry
from .claims import REFERENCE, Place, Ranking, gains, place_name, rankings, row_key
from .column import find_column, in_order, values
from .formatting import BITS, rows_of
from .naming import find_variant, unique_names
from .runs import SECTIONS, runs_of
from .seeds import over_seeds

COMPARABLE_WITHIN = 0.10
"""Largest difference in body parameters of comparable variants, as a fraction of the transformer's."""
RANKED_TOGETHER = ["task", "task_version", "protocol", "data_lacks", "section"]
"""Columns that identify a ranking of scores."""
COMPARED = {
    "difference": "difference", "difference_low": "low", "difference_high": "high", "p_against": "p_holm",
    "detectable": "detectable",
}  # fmt: skip
"""Columns of the comparison with the reference row, and fields of ``Comparison``."""
ONE_ROW = [*RANKED_TOGETHER, "hardware", "variant", "modified", "hash"]
"""Columns that identify a row; records that share them differ in their seeds."""


def leaderboard(records: Iterable[Record], against: str | None = None) -> pd.DataFrame:
    """Return one row per variant, task, protocol and hardware, with its seeds combined.

    Seeds on different machines are in one row (``combine_machines``). ``columns.LONG`` describes the columns. Rows are
    sorted by score within ``RANKED_TOGETHER``; those with fewer than ``MIN_SEEDS`` seeds, of the section ``edge`` and
    of tasks that are ``not_learned`` have no rank. Pretrained systems are compared with the same ones without
    pretraining, others with the variant ``against``, by default ``REFERENCE``. Raises ``UserError`` if ``against``
    matches no variant, or several.
    """
    shown, reference = list(records), REFERENCE
    if against is not None:  # an error is raised before anything is computed
        reference = find_variant(shown, against, "--against")[1][0].variant_name
    rows = _with_claims(without_claims(shown), rankings(shown), reference)
    return rows[in_order(registry.long(), rows.columns)]


def without_claims(records: Sequence[Record]) -> pd.DataFrame:
    """Return the rows of ``leaderboard`` without the comparisons, which take most of the time."""
    records = combine_machines(records)
    rows, names = variants(runs(records)), unique_names(records)
    keys = zip(*(rows[name] for name in ("task", "protocol", "hardware", "model", "hash", "variant")), strict=True)
    unique = [names.get((*key,), variant) for *key, variant in keys]
    labels = [
        label.removesuffix(variant.removeprefix(model)) + name.removeprefix(model)
        for label, variant, model, name in zip(rows["label"], rows["variant"], rows["model"], unique, strict=True)
    ]
    return rows.assign(best=False, variant=unique, label=labels)


def runs(records: Iterable[Record]) -> pd.DataFrame:
    """Return one row per record with every column of runs, unrounded and in the units of the metrics."""
    return pd.DataFrame([values(run, (*registry.long(), *registry.RUN_ONLY)) for run in runs_of(records)])


def variants(frame: pd.DataFrame) -> pd.DataFrame:
    """Return the leaderboard from a table with one row per run, as returned by ``runs``."""
    if frame.empty:
        return pd.DataFrame(columns=[column.name for column in registry.long() if not column.repeats])
    known = {str(name): find_column(registry.long(), str(name)) for name in frame}
    rules: dict[str, Rule] = {name: column.seeds for name, column in known.items() if column}
    own = _with_data(frame[[*rules, "seed", "status", "examples"]].copy())
    rows = over_seeds(own, ONE_ROW, {**rules, "examples": "first"}).drop(columns="status")
    rows["interval"] = [
        f"{int(examples):,} examples" if unit == "examples" else f"{len(scores)} seeds" if unit else None
        for unit, scores, examples in zip(rows["interval"], rows["seed_scores"], rows.pop("examples"), strict=True)
    ]
    rows = with_types(rows, registry.long())
    rows["comparable"] = _comparable(rows)
    cost = rows["score"].where(rows["metric"] == BITS, -rows["score"]).where(rows["section"] != "edge")
    ranked = (rows["seeds"] >= MIN_SEEDS) & ~not_learned(rows, RANKED_TOGETHER)
    rows["rank"] = _rank(rows, cost.where(ranked))
    places = rows.assign(section=rows["section"].map(SECTIONS.index), position=_rank(rows, cost))
    order = places.sort_values([*RANKED_TOGETHER, "position", "hardware", "variant"], na_position="last").index
    return rows.loc[order].reset_index(drop=True)


def _with_data(frame: pd.DataFrame) -> pd.DataFrame:
    """Fill in the task version and the missing data of runs that ended before loading data, such as incompatible ones.

    The values are those of the other runs of the task and protocol; they stay empty if these runs differ.
    """
    data = ["task_version", "data_lacks"]
    for _, own in frame.groupby(["task", "protocol"]):
        known = own[own["task_version"].notna()][data].drop_duplicates()
        if len(known) == 1:
            frame.loc[own.index[own["task_version"].isna()], data] = known.iloc[0].tolist()
    return frame


def not_learned(rows: pd.DataFrame, together: list[str]) -> pd.Series:
    """Return for each row whether no row of its group clears the strongest floor in every seed, False if unknown."""
    keys = [rows[name] for name in together]
    known = rows["learned"].notna() & (rows["seeds"] > 0)
    learned = known & (rows["learned"] == rows["seeds"]).fillna(False)
    of_groups = (each.groupby(keys, dropna=False).transform("any") for each in (known, learned))
    return next(of_groups) & ~next(of_groups)


def _with_claims(rows: pd.DataFrame, found: Mapping[Place, Ranking], reference: str) -> pd.DataFrame:
    """Return the rows with the comparison with the reference row of their ranking, and whether they are the best.

    A pretrained system is compared with the same one without pretraining.
    """
    if rows.empty:
        return rows
    claims: list[dict[str, Any]] = []
    gained = cache(lambda place: gains(found, place))
    with bar(len(rows), "comparing variants", unit="rows") as advance:
        for row in rows_of(rows):
            key, place = row_key(row), place_name(row)
            own = {**dict.fromkeys(("against", *COMPARED)), "verdict": "", "best": False}
            if (ranking := found.get(place)) is not None and key in ranking.entries:
                own["best"], base = key in ranking.winners, ranking.reference(reference)
                compared = None
                if row["pretraining"]:
                    compared = gained(place).get(key)
                elif key == base:
                    own |= {"against": ranking.entries[base].name, "verdict": "reference"}
                elif base is not None:
                    compared = ranking.against(base)[key]
                if compared is not None:
                    own |= {name: getattr(compared, field) for name, field in COMPARED.items()}
                    own |= {"against": compared.against, "verdict": compared.verdict_of_a}
            claims.append(own)
            advance(1, row["task"])
    added = pd.DataFrame(claims, rows.index)
    return with_types(pd.concat([rows.drop(columns="best"), added], axis=1), registry.long())


def with_types(rows: pd.DataFrame, columns: Sequence[Column]) -> pd.DataFrame:
    """Return the rows with the types declared by the columns."""
    declared = {str(name): find_column(columns, str(name)) for name in rows}
    types = {name: column.dtype for name, column in declared.items() if column and column.dtype}
    return rows.astype(types).copy()  # without the copy, pandas warns that the frame is fragmented


def _comparable(rows: pd.DataFrame) -> pd.Series:
    """Return whether each row is comparable with the Transformer, None if unknown; modified protocols are not."""
    together = ["task", "task_version", "protocol"]
    reference = rows[(rows["variant"] == REFERENCE) & (rows["section"] == "ranked")]
    known = reference.dropna(subset="parameters_body_active").groupby(together)["parameters_body_active"].first()
    body, other = rows["parameters_body_active"], rows.join(known.rename("other"), on=together)["other"]
    close = (body - other).abs() <= COMPARABLE_WITHIN * other
    found = [None if pd.isna(each) else bool(each) for each in close]
    return pd.Series(found, rows.index, dtype=object).mask(rows["section"] == "modified", False)


def _rank(rows: pd.DataFrame, cost: pd.Series) -> pd.Series:
    """Return ranks from 1 by increasing cost within rankings, missing if the cost is."""
    keys = [rows[name] for name in RANKED_TOGETHER]
    return cost.groupby(keys, dropna=False).rank(method="min").astype("Int64")
