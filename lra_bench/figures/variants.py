"""Sheet, panel and label of each record in figures."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import numpy as np
import pandas as pd

from lra_bench.records.schema import Record
from lra_bench.tables.claims import Key, Place, place_name, rankings, row_key, tie_letters
from lra_bench.tables.column import values
from lra_bench.tables.columns import of_runs
from lra_bench.tables.runs import Run, missing_data, section_of
from lra_bench.tables.seeds import Scores

from .palette import Look, family_order, looks

SHEET = ["protocol", "section"]
PANEL = ["task", "version", "data_lacks"]
IDENTITY = ["model", "family", "name", "variant", "modified", "hash", "hardware", "reference"]
VARIANT = [*SHEET, *PANEL, *IDENTITY]
SCORES = ("status", "metric", "score", "low", "high", "examples", "floor", "floor_name", "skill", "clears_floor")
NAMED = 2  # with more modified keys than this, a label contains their number only
MARK = " (reference)"


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
        "name": Run(record).label,
        "variant": record.variant_name,
        "modified": ", ".join(record.protocol_modified),
        "hash": record.key.hash,
        "hardware": record.machine,
        "reference": record.reference,
        "seed": record.key.seed,
    }


def floor_of(record: Record) -> dict[str, Any]:
    """Return the columns of the strongest floor of a record, None if there is none."""
    return dict(zip(("floor_name", "floor"), Run(record).floor, strict=True))


def places(records: Sequence[Record]) -> pd.DataFrame:
    """Return the columns of ``identity``, one row per record."""
    return pd.DataFrame([identity(record) for record in records])


def placed(records: Sequence[Record], rows: Sequence[Sequence[Mapping[str, Any]]]) -> pd.DataFrame:
    """Return the rows of all records in one frame, with the columns of ``identity``.

    ``rows`` has one sequence per record.
    """
    of_record = np.repeat(np.arange(len(records)), [len(own) for own in rows])
    values = pd.DataFrame([row for own in rows for row in own])
    return pd.concat([places(records).iloc[of_record].reset_index(drop=True), values], axis=1)


def scores(records: Sequence[Record]) -> pd.DataFrame:
    """Return one row per record: the columns of ``identity`` and the leaderboard columns in ``SCORES``.

    ``train_length`` is the length of the scored examples, in tokens.
    """
    columns = of_runs(SCORES)
    lengths = [record.extrapolation["train_length"] if record.extrapolation else None for record in records]
    found = [[values(Run(record), columns) | {"train_length": n}] for record, n in zip(records, lengths, strict=True)]
    return placed(records, found)


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
        key = row_key(row)
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
    """Return a label for each row: the name with the model's label, and the modified keys.

    Rows of a reference board are marked if there are also others. If two models share a label, their keys are used. If
    two rows of a task have the same label, their boards, or the hardware, are added in every panel, and the hash, which
    is specific to a task, in that panel only.
    """
    names = rows["name"]
    names = rows["variant"].where(names.isin(set(names[_several(rows, names, "model")])), names)
    names += rows["modified"].map(_changed)
    if not rows["reference"].astype(bool).all():
        names += rows["reference"].map(lambda board: MARK if board else "")
    ambiguous = set(names[_several(rows, names, "hardware")])
    places = rows["reference"].where(rows["reference"].astype(bool), rows["hardware"])
    places = places.where(~_several(rows, names + places, "hardware"), rows["hardware"])
    names = names.where(~names.isin(ambiguous), names + " @ " + places)
    return names.where(~_several(rows, names, "hash"), names + " #" + rows["hash"])


def _changed(keys: str) -> str:
    """Return the modified keys of the protocol in parentheses, or their number if there are more than ``NAMED``."""
    count = len(keys.split(", ")) if keys else 0
    return f" ({keys if count <= NAMED else f'{count} keys'} changed)" if count else ""


def _several(rows: pd.DataFrame, names: pd.Series, column: str) -> pd.Series:
    return rows.assign(label=names).groupby([*PANEL, "label"], dropna=False)[column].transform("nunique") > 1


def band(points: pd.DataFrame, by: Sequence[str], value: str, **further: tuple[str, str]) -> pd.DataFrame:
    """Return one row per group of ``by``: the mean of ``value``, its range over seeds, and the strongest floor.

    The columns are ``seeds``, ``floor``, ``floor_name``, ``value``, ``low``, ``high`` and ``further`` aggregations.
    """
    columns = {
        "seeds": ("seed", "nunique"), "floor": ("floor", "mean"), "floor_name": ("floor_name", "first"),
        value: (value, "mean"), "low": (value, "min"), "high": (value, "max"), **further,
    }  # fmt: skip
    return points.groupby(list(by), dropna=False).agg(**columns).reset_index()


def at_floor(rows: pd.DataFrame) -> pd.Series:
    """Return a mask of the rows in which no seed is shown to exceed the floor; False if unknown."""
    return rows["learned"].eq(0).astype(bool)


def looks_of(rows: pd.DataFrame) -> dict[tuple[str, str], Look]:
    """Return the look of each (model, label) in ``rows``."""
    return looks(rows[["model", "family", "label"]].drop_duplicates().itertuples(index=False, name=None))


def in_order(rows: pd.DataFrame) -> list[tuple[str, str]]:
    """Return the (model, label) pairs in the order of legends: the user's, or by family from the reference's on."""
    place = rows["model"].cat.codes if hasattr(rows["model"], "cat") else 0
    found = rows.assign(place=place)[["place", "family", "model", "label"]].drop_duplicates()
    entries = found.itertuples(index=False, name=None)
    return [each[2:] for each in sorted(entries, key=lambda each: (each[0], family_order(each[1]), *each[1:]))]


def panel_title(rows: pd.DataFrame, sheet: pd.DataFrame) -> str:
    """Return the title of a panel: the task, its version if the sheet has several, and a mark for incomplete data."""
    first = rows.iloc[0]
    version = f" v{first['version']}" if sheet.loc[sheet["task"] == first["task"], "version"].nunique() > 1 else ""
    return f"{first['task'].replace('_', ' ')}{version}{' (incomplete data)' if first['data_lacks'] else ''}"


def extent(rows: pd.DataFrame, *columns: str) -> tuple[float, float]:
    """Return the smallest and the largest known value in the columns, NaN if none is known."""
    values = rows[list(columns)].astype(float)
    return float(values.min().min()), float(values.max().max())


def score_extent(rows: pd.DataFrame, y: str = "score") -> tuple[float, float]:
    """Return the smallest and the largest of the values of ``y``, those of each seed, ends of intervals and floors.

    They are NaN if none is known.
    """
    low, high = extent(rows, *(name for name in (y, "low", "high", "floor") if name in rows))
    seeds = [score for scores in rows.get("seed_scores", ()) for score in scores]
    return min([low, *seeds]), max([high, *seeds])


def units_of(rows: pd.DataFrame) -> tuple[float, str]:
    """Return ``units`` of the scores of a panel, bits per character without a column ``metric``."""
    return units(rows["metric"].iloc[0] if "metric" in rows else "bits_per_character")


def units(metric: str | None) -> tuple[float, str]:
    """Return the factor by which a score is scaled, and its axis label; an arrow means that lower is better."""
    return (1.0, "bits per character ↓") if metric == "bits_per_character" else (100.0, "accuracy (%)")


def scaled(rows: pd.DataFrame, factor: float, y: str = "score") -> pd.DataFrame:
    """Return the rows with the values of the column ``y``, their ends and seeds, and the floors times ``factor``."""
    names = [name for name in (y, "low", "high", "floor") if name in rows]
    found = rows.assign(**{name: factor * rows[name].astype(float) for name in names})
    if "seed_scores" in rows:
        found["seed_scores"] = [Scores(factor * score for score in scores) for scores in rows["seed_scores"]]
    return found
