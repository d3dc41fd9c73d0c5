"""Sheet, panel and label of each record in figures, and averages over seeds."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from lra_bench.leaderboard.claims import Key, Place, place_name, rankings, tie_letters
from lra_bench.leaderboard.column import values
from lra_bench.leaderboard.columns import of_runs
from lra_bench.leaderboard.runs import Run, missing_data, section_of
from lra_bench.records.schema import Record
from lra_bench.statistics.seeds import SeedScore, summarise_seeds

from .palette import Look, family_order, looks

if TYPE_CHECKING:
    import pandas as pd

SHEET = ["protocol", "section"]
PANEL = ["task", "version", "data_lacks"]
IDENTITY = ["model", "family", "variant", "modified", "hash", "hardware", "reference"]
SCORES = ("status", "metric", "score", "low", "high", "examples", "floor", "floor_name", "skill", "clears_floor")
NAMED = 2  # with more modified keys than this, a label contains their number only
MARK = " (reference)"
CROWDED = 8
"""Maximum number of variants drawn as distinguishable curves in one panel."""


def identity(record: Record) -> dict[str, Any]:
    """Return the columns ``SHEET``, ``PANEL`` and ``IDENTITY`` of a record, and its seed."""
    return {
        "protocol": record.key.protocol,
        "section": section_of(record),
        "task": record.key.task,
        "version": record.data["version"] if record.data else None,
        "data_lacks": missing_data(record),
        "model": record.key.model,
        "family": (record.capability or {}).get("family", "other"),
        "variant": record.variant_name,
        "modified": ", ".join(record.protocol_modified),
        "hash": record.key.hash,
        "hardware": record.machine,
        "reference": record.reference,
        "seed": record.key.seed,
    }


def places(records: Sequence[Record]) -> pd.DataFrame:
    """Return the columns of ``identity``, one row per record."""
    import pandas as pd

    return pd.DataFrame([identity(record) for record in records])


def placed(records: Sequence[Record], rows: Sequence[Sequence[Mapping[str, Any]]]) -> pd.DataFrame:
    """Return the rows of all records in one frame, with the columns of ``identity``.

    ``rows`` has one sequence per record.
    """
    import numpy as np
    import pandas as pd

    of_record = np.repeat(np.arange(len(records)), [len(own) for own in rows])
    values = pd.DataFrame([row for own in rows for row in own])
    return pd.concat([places(records).iloc[of_record].reset_index(drop=True), values], axis=1)


def scores(records: Sequence[Record]) -> pd.DataFrame:
    """Return one row per record: the columns of ``identity`` and the leaderboard columns in ``SCORES``.

    ``train_length`` is the length of the scored examples, in tokens.
    """
    import pandas as pd

    columns = of_runs(SCORES)
    return pd.DataFrame(
        [
            identity(record)
            | values(Run(record), columns)
            | {"train_length": record.extrapolation["train_length"] if record.extrapolation else None}
            for record in records
        ]
    )


def with_claims(rows: pd.DataFrame, records: Sequence[Record], pairs: bool = True) -> pd.DataFrame:
    """Return the rows with the claims of tables: whether a row is among the ``best``, and its letters in ``ties``.

    Two rows of a task with letters differ significantly unless they share a letter. Without ``pairs`` the tests of all
    pairs are skipped, and there are no letters.
    """
    found = rankings(records)
    best, ties = [], []
    letters: dict[Place, Mapping[Key, str]] = {}
    for row in rows.to_dict("records"):
        place = place_name({**row, "task_version": row["version"]})
        key = (row["model"], row["reference"], row["hash"])
        ranking = found.get(place)
        if ranking is not None and place not in letters:
            letters[place] = tie_letters(ranking) if pairs else {}
        best.append(ranking is not None and key in ranking.winners)
        ties.append(letters[place].get(key, "") if ranking is not None else "")
    return rows.assign(best=best, ties=ties)


def sheets(data: pd.DataFrame, *further: str) -> Iterator[tuple[tuple[str, ...], pd.DataFrame]]:
    """Yield the parts of each sheet's name (protocol, section if not ranked, ``further``) and its labelled rows."""
    for key, rows in data.groupby([*SHEET, *further], dropna=False):
        protocol, section, *others = map(str, key)
        parts = (protocol, "" if section == "ranked" else section, *others)
        yield parts, rows.assign(label=labels(rows))


def labels(rows: pd.DataFrame) -> pd.Series:
    """Return a label for each row: the variant, its modified keys, and ``(reference)`` for rows of a reference board.

    If two rows of a task have the same label, the hardware is added in every panel, and the hash, which is specific to
    a task, in that panel only.
    """
    names = rows["variant"] + rows["modified"].map(_changed)
    names += rows["reference"].map(lambda board: MARK if board else "")
    ambiguous = set(names[_several(rows, names, "hardware")])
    names = names.where(~names.isin(ambiguous), names + " @ " + rows["hardware"])
    return names.where(~_several(rows, names, "hash"), names + " #" + rows["hash"])


def _changed(keys: str) -> str:
    """Return the modified keys of the protocol in parentheses, or their number if there are more than ``NAMED``."""
    count = len(keys.split(", ")) if keys else 0
    return f" ({keys if count <= NAMED else f'{count} keys'} changed)" if count else ""


def _several(rows: pd.DataFrame, names: pd.Series, column: str) -> pd.Series:
    return rows.assign(name=names).groupby([*PANEL, "name"], dropna=False)[column].transform("nunique") > 1


def over_seeds(points: pd.DataFrame, by: list[str], first: Sequence[str] = ()) -> pd.DataFrame:
    """Return one row per group of ``by`` with the seeds combined as in tables (``summarise_seeds``).

    Args:
        points: One row per seed, with the columns of ``by``, ``seed``, ``score``, ``low``, ``high``, ``metric`` and, if
            known, ``floor`` and ``clears_floor``.
        by: The columns that identify a row.
        first: Columns of which the first known value is kept.

    Returns:
        The rows. ``score`` is the mean over seeds, and ``seed_scores`` contains the score of each. ``low`` and ``high``
        are the ends of the 95 % confidence interval: over examples with one seed (``interval`` is ``examples``), over
        seeds with five or more on one level (``seeds``), otherwise missing (``each``). ``seeds`` is the number of
        seeds, ``learned`` that of seeds that exceed the floor. Other numbers are averaged; other columns keep the value
        that all seeds share and are missing if seeds differ.
    """
    import pandas as pd

    frame = points.sort_values([*by, "seed"]).reset_index(drop=True)
    groups = frame.groupby(by, dropna=False, sort=True)
    own = [name for name in frame if name not in (*by, "seed", "low", "high", "clears_floor")]
    numeric = [name for name in own if pd.api.types.is_numeric_dtype(frame[name]) and name not in first]
    texts = [name for name in own if name not in (*numeric, *first)]
    # Columns of one data type are combined by pandas at once, which is much faster than one group after the other.
    rows = pd.concat(
        [
            groups[numeric].mean(),
            groups[texts].first().where(groups[texts].nunique() <= 1, None),
            groups[list(first)].first(),
        ],
        axis=1,
    )
    data = {name: frame[name].tolist() for name in ("score", "low", "high", "metric")}
    clears = frame["clears_floor"].tolist() if "clears_floor" in frame else [None] * len(frame)
    floors = frame["floor"].tolist() if "floor" in frame else [None] * len(frame)
    summaries = [_summary(data, clears, floors, list(map(int, found))) for found in groups.indices.values()]
    rows = rows.assign(**{name: [summary[name] for summary in summaries] for name in SUMMARY})
    return rows.astype({"low": float, "high": float}).reset_index()


SUMMARY = ("low", "high", "seeds", "interval", "seed_scores", "learned", "two_levels", "clears_floor")


def _summary(
    data: Mapping[str, list[Any]], clears: Sequence[Any], floors: Sequence[Any], places: Sequence[int]
) -> dict[str, Any]:
    """Return the columns ``SUMMARY`` of the seeds at the indices ``places``."""
    scored = [place for place in places if _is_known(data["score"][place])]
    if not scored:
        unknown = dict.fromkeys(SUMMARY)
        return {**unknown, "seeds": 0, "interval": "examples", "seed_scores": "", "two_levels": False}
    seeds = [
        SeedScore(
            score=data["score"][place],
            low=data["low"][place] if _is_known(data["low"][place]) else None,
            high=data["high"][place] if _is_known(data["high"][place]) else None,
            clears_floor=bool(clears[place]) if _is_known(clears[place]) else None,
        )
        for place in scored
    ]
    known = [floors[place] for place in scored if _is_known(floors[place])]
    higher = data["metric"][scored[0]] != "bits_per_character"
    found = summarise_seeds(seeds, higher, sum(known) / len(known) if known else None)
    return {
        "low": found.low,
        "high": found.high,
        "seeds": len(seeds),
        "interval": "examples" if len(seeds) == 1 else "seeds" if found.low is not None else "each",
        "seed_scores": " ".join(f"{seed.score:.6g}" for seed in seeds),
        "learned": found.learned,
        "two_levels": found.two_levels,
        "clears_floor": found.clears_floor,
    }


def _is_known(value: Any) -> bool:
    return value is not None and value == value


def at_floor(rows: pd.DataFrame) -> pd.Series:
    """Return for each row whether no seed exceeds the floor; False if unknown."""
    return rows["learned"].map(lambda learned: _is_known(learned) and learned == 0).astype(bool)


def seed_values(row: Mapping[Any, Any]) -> list[float]:
    """Return the scores of the seeds of a row that has no interval, empty otherwise."""
    return [float(score) for score in str(row["seed_scores"]).split()] if row["interval"] == "each" else []


def looks_of(rows: pd.DataFrame) -> dict[tuple[str, str], Look]:
    """Return the look of each (model, label) in ``rows``."""
    return looks(rows[["model", "family", "label"]].drop_duplicates().itertuples(index=False, name=None))


def in_order(rows: pd.DataFrame) -> list[tuple[str, str]]:
    """Return the (model, label) pairs of ``rows`` in the order of legends: by family, that of the reference first."""
    found = rows[["family", "model", "label"]].drop_duplicates().itertuples(index=False, name=None)
    return [(model, label) for _, model, label in sorted(found, key=lambda each: (family_order(each[0]), *each))]


def panel_title(rows: pd.DataFrame, sheet: pd.DataFrame) -> str:
    """Return the title of a panel: the task, its version if the sheet has several, and a mark for incomplete data."""
    first = rows.iloc[0]
    version = f" v{first['version']}" if sheet.loc[sheet["task"] == first["task"], "version"].nunique() > 1 else ""
    return f"{first['task']}{version}{' (incomplete data)' if first['data_lacks'] else ''}"


def heading(parts: Sequence[str]) -> str:
    """Return the heading of a page from the parts of its name."""
    protocol, section, *others = parts
    remark = {"": "", "edge": ", searched rate at an end of the grid"}.get(section, f", {section}")
    parts_of_heading = f"protocol {protocol}{remark}", *filter(None, others)
    return " · ".join(re.sub(r"^batch(\d+)$", r"batch \1", part) for part in parts_of_heading)


def extent(rows: pd.DataFrame, *columns: str) -> tuple[float, float]:
    """Return the smallest and the largest known value in the columns, at least one of which must be known."""
    import numpy as np

    values = rows[list(columns)].to_numpy(float)
    return float(np.nanmin(values)), float(np.nanmax(values))


def score_extent(rows: pd.DataFrame) -> tuple[float, float]:
    """Return the smallest and the largest of scores, those of each seed, ends of intervals, and floors."""
    low, high = extent(rows, "score", "low", "high", "floor")
    seeds = [float(score) for scores in rows["seed_scores"] for score in str(scores).split()]
    return min(low, *seeds), max(high, *seeds)


def units(metric: str | None) -> tuple[float, str]:
    """Return the factor by which a score is scaled, and its axis label; an arrow means that lower is better."""
    return (1.0, "bits per character ↓") if metric == "bits_per_character" else (100.0, "accuracy (%)")
