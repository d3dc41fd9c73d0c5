"""The long table of the leaderboard: one row per variant, task, protocol and hardware, with ranks and claims."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from lra_bench.measurement import Column
from lra_bench.progress import bar
from lra_bench.records.schema import Record
from lra_bench.statistics.paired import MIN_SEEDS

from . import columns as registry
from .claims import REFERENCE, Key, Place, Ranking, place_name, rankings
from .column import find_column, in_order, values
from .formatting import rows_of
from .gains import FROM_SCRATCH, gains
from .naming import find_variant, unique_names
from .pair_tests import Comparison
from .runs import SECTIONS, runs_of
from .seeds import Rule, over_seeds

if TYPE_CHECKING:
    import pandas as pd

COMPARABLE_WITHIN = 0.10
"""Largest difference in body parameters of comparable variants, as a fraction of the transformer's."""
RANKED_TOGETHER = ["task", "task_version", "protocol", "data_lacks", "section"]
"""Columns that identify a ranking of scores."""
ONE_ROW = [*RANKED_TOGETHER, "hardware", "variant", "modified", "hash"]
"""Columns that identify a row; records that share them differ in their seeds."""


def leaderboard(records: Iterable[Record], protocol: str | None = None, against: str | None = None) -> pd.DataFrame:
    """Return one row per variant, task, protocol and hardware, with its seeds combined.

    Seeds that did not finish are counted in ``statuses``. ``score`` is the mean over seeds. ``low`` and ``high`` are
    the ends of a 95 % confidence interval: of the score over the examples of the only seed, or of the mean over seeds
    (Student's t) for ``CLAIM_SEEDS`` or more seeds on one level, otherwise missing. ``rank`` sorts by score within
    task, task version, protocol, ``data_lacks`` and section; rows with a protocol modified by the user form the section
    ``modified``, and rows whose searched learning rate is at an end of the grid the section ``edge``, without ranks.
    Pretrained systems form a section by their objective, and are compared with the same ones without pretraining.
    Rows with fewer than ``MIN_SEEDS`` seeds have no rank, and neither have those of tasks that are ``not_learned``.
    ``comparable`` is true if the number of active body parameters is within 10 % of the transformer's under the same
    protocol, None if the transformer was not run. ``best`` and ``verdict`` are claims of ``Ranking``.

    Args:
        records: The records.
        protocol: The protocol to show, by default all.
        against: Name of the variant that all others are compared with, by default ``REFERENCE``.

    Returns:
        The rows.

    Raises:
        UserError: If ``against`` matches no variant, or several.
    """
    shown = [record for record in records if record.key.has_protocol(protocol)]
    reference = _reference_name(shown, against)  # raises an error before anything is computed
    rows = _with_claims(without_claims(shown), rankings(shown), reference)
    return rows[in_order(registry.long(), rows.columns)]


def without_claims(records: Sequence[Record]) -> pd.DataFrame:
    """Return the rows of ``leaderboard`` without the comparisons, which take most of the time."""
    rows, names = variants(runs(records)), unique_names(records)
    keys = zip(*(rows[name] for name in ("task", "protocol", "hardware", "model", "hash", "variant")), strict=True)
    unique = [names.get((*key,), variant) for *key, variant in keys]
    labels = [
        label.removesuffix(variant.removeprefix(model)) + name.removeprefix(model)
        for label, variant, model, name in zip(rows["label"], rows["variant"], rows["model"], unique, strict=True)
    ]
    return rows.assign(best=False, variant=unique, label=labels)


def _reference_name(records: Sequence[Record], against: str | None) -> str:
    """Return the name of the variant that others are compared with; raises ``UserError`` if it is ambiguous."""
    if against is None:
        return REFERENCE
    _, found = find_variant(records, against, "--against")
    return found[0].variant_name


def runs(records: Iterable[Record]) -> pd.DataFrame:
    """Return one row per record with every column of runs, unrounded and in the units of the metrics."""
    import pandas as pd

    return pd.DataFrame([values(run, (*registry.long(), *registry.RUN_ONLY)) for run in runs_of(records)])


def variants(frame: pd.DataFrame) -> pd.DataFrame:
    """Return the leaderboard from a table with one row per run, as returned by ``runs``."""
    import pandas as pd

    if frame.empty:
        return pd.DataFrame(columns=[column.name for column in registry.long() if not column.repeats])
    known = {str(name): find_column(registry.long(), str(name)) for name in frame}
    rules: dict[str, Rule] = {name: column.seeds for name, column in known.items() if column}
    own = frame[[*rules, "seed", "status", "examples"]]
    rows = over_seeds(own, ONE_ROW, {**rules, "examples": "first"}).drop(columns="status")
    rows["interval"] = [
        f"{int(examples):,} examples" if unit == "examples" else f"{len(scores)} seeds" if unit else None
        for unit, scores, examples in zip(rows["interval"], rows["seed_scores"], rows.pop("examples"), strict=True)
    ]
    rows = with_types(rows, registry.long())
    rows["comparable"] = pd.Series(_comparable(rows), index=rows.index, dtype=object)
    higher = rows["metric"] != "bits_per_character"
    cost = rows["score"].where(~higher, -rows["score"])
    cost = cost.where(rows["section"] != "edge")
    rows["position"] = _rank(rows, RANKED_TOGETHER, cost)
    ranked = (rows["seeds"] >= MIN_SEEDS) & ~not_learned(rows, RANKED_TOGETHER)
    rows["rank"] = _rank(rows, RANKED_TOGETHER, cost.where(ranked))
    order = ["task", "task_version", "protocol", "data_lacks", "section", "position", "hardware", "variant"]
    by_name = {"section": lambda column: column.map(SECTIONS.index)}
    return (
        rows.sort_values(
            order, key=lambda column: by_name.get(str(column.name), lambda same: same)(column), na_position="last"
        )
        .drop(columns="position")
        .reset_index(drop=True)
    )


def not_learned(rows: pd.DataFrame, together: list[str]) -> pd.Series:
    """Return for each row whether no row of its group clears the strongest floor in every seed, False if unknown."""
    keys = [rows[name] for name in together]
    known = rows["learned"].notna() & (rows["seeds"] > 0)
    learned = known & (rows["learned"] == rows["seeds"]).fillna(False)
    of_groups = (each.groupby(keys, dropna=False).transform("any") for each in (known, learned))
    return next(of_groups) & ~next(of_groups)


def _with_claims(rows: pd.DataFrame, found: Mapping[Place, Ranking], reference: str) -> pd.DataFrame:
    """Return the rows with the comparison with the reference row of their ranking, and whether they are the best."""
    import pandas as pd

    if rows.empty:
        return rows
    claims: list[dict[str, Any]] = []
    compared: dict[Place, Mapping[Key, Comparison]] = {}
    with bar(len(rows), "comparing variants", unit="rows") as advance:
        for row in rows_of(rows):
            claims.append(_claims(row, found, reference, compared))
            advance(1, row["task"])
    added = pd.DataFrame(claims, rows.index)
    return with_types(pd.concat([rows.drop(columns="best"), added], axis=1), registry.long())


def _claims(
    row: Mapping[Any, Any],
    rankings: Mapping[Place, Ranking],
    reference: str,
    compared: dict[Place, Mapping[Key, Comparison]],
) -> dict[str, Any]:
    """Return the columns of the comparison of one row with the reference row, and whether it is the best.

    A pretrained system is compared with the same one without pretraining; ``compared`` keeps these comparisons.
    """
    key, place = (row["model"], row["reference"], row["hash"]), place_name(row)
    ranking = rankings.get(place)
    claims: dict[str, Any] = {
        **dict.fromkeys(("against", "difference", "difference_low", "difference_high", "p_against", "detectable")),
        "verdict": "",
        "best": False,
    }
    if ranking is None or key not in ranking.entries:
        return claims
    claims["best"] = key in ranking.winners
    if row["pretraining"]:
        if place not in compared:
            compared[place] = gains(rankings, place)
        gain = compared[place].get(key)
        return claims if gain is None else {**claims, "against": FROM_SCRATCH, **_comparison(gain)}
    base = ranking.reference(reference)
    if base is None:
        return claims
    claims["against"] = ranking.entries[base].name
    if key == base:
        return {**claims, "verdict": "reference"}
    return {**claims, **_comparison(ranking.against(base)[key])}


def _comparison(found: Comparison) -> dict[str, Any]:
    """Return the columns of a comparison of a row (A)."""
    return {
        "difference": found.difference,
        "difference_low": found.low,
        "difference_high": found.high,
        "p_against": found.p_holm,
        "detectable": found.detectable,
        "verdict": found.verdict_of_a,
    }


def with_types(rows: pd.DataFrame, columns: Sequence[Column]) -> pd.DataFrame:
    """Return the rows with the types declared by the columns."""
    declared = {str(name): find_column(columns, str(name)) for name in rows}
    types = {name: column.dtype for name, column in declared.items() if column and column.dtype}
    return rows.astype(types).copy()  # without the copy, pandas warns that the frame is fragmented


def _comparable(rows: pd.DataFrame) -> list[bool | None]:
    reference = rows[(rows["variant"] == REFERENCE) & (rows["section"] == "ranked")]
    bodies = reference.dropna(subset=["parameters_body_active"]).groupby(["task", "task_version", "protocol"])
    known = bodies["parameters_body_active"].first().to_dict()
    return [
        _is_comparable(body, known.get((task, version, protocol)), section)
        for task, version, protocol, section, body in zip(
            rows["task"],
            rows["task_version"],
            rows["protocol"],
            rows["section"],
            rows["parameters_body_active"],
            strict=True,
        )
    ]


def _is_comparable(body: Any, reference: Any, section: str) -> bool | None:
    import pandas as pd

    if section == "modified":
        return False
    if pd.isna(body) or reference is None:
        return None
    return bool(abs(body - reference) <= COMPARABLE_WITHIN * reference)


def _rank(rows: pd.DataFrame, within: list[str], value: pd.Series) -> pd.Series:
    """Return ranks from 1 by increasing ``value`` within groups, missing if the value is."""
    keys = [rows[name] for name in within]
    return value.groupby(keys, dropna=False).rank(method="min").astype("Int64")
