"""What is drawn of each record: which sheet and panel it belongs to, what it is called, seeds taken together."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from lra_bench.leaderboard.column import values
from lra_bench.leaderboard.columns import of_runs
from lra_bench.leaderboard.runs import Run, missing_data
from lra_bench.records.schema import Record
from lra_bench.statistics.intervals import t_quantile

from .palette import Look, family_order, looks

if TYPE_CHECKING:
    import pandas as pd

SHEET = ["protocol", "section"]
PANEL = ["task", "version", "data_lacks"]
IDENTITY = ["model", "family", "variant", "modified", "hash", "hardware", "reference"]
SCORES = ("status", "metric", "score", "low", "high", "examples", "floor", "floor_name", "skill")
NAMED = 2  # of more changed keys than this only the number is told, and the hash where that leaves two alike
MARK = " (reference)"
CROWDED = 8
"""More variants than these are not told apart as curves in one panel."""


def identity(record: Record) -> dict[str, Any]:
    """The columns that place a record: those of ``SHEET``, ``PANEL`` and ``IDENTITY``, and its seed."""
    return {
        "protocol": record.key.protocol,
        "section": "modified" if record.protocol_modified else "ranked",
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
    """The columns of ``identity``, a row per record."""
    import pandas as pd

    return pd.DataFrame([identity(record) for record in records])


def placed(records: Sequence[Record], rows: Sequence[Sequence[Mapping[str, Any]]]) -> pd.DataFrame:
    """One frame of the rows of all records, beside the columns of ``identity``, which are made once per record."""
    import numpy as np
    import pandas as pd

    of_record = np.repeat(np.arange(len(records)), [len(own) for own in rows])
    values = pd.DataFrame([row for own in rows for row in own])
    return pd.concat([places(records).iloc[of_record].reset_index(drop=True), values], axis=1)


def scores(records: Sequence[Record]) -> pd.DataFrame:
    """One row per record: its place, and its score as leaderboards know it."""
    import pandas as pd

    columns = of_runs(SCORES)
    return pd.DataFrame([identity(record) | values(Run(record), columns) for record in records])


def sheets(data: pd.DataFrame, *further: str) -> Iterator[tuple[tuple[str, ...], pd.DataFrame]]:
    """Rows that may share a page, labelled, with the parts of its name: protocol, ``modified``, then ``further``."""
    for key, rows in data.groupby([*SHEET, *further], dropna=False):
        protocol, section, *others = map(str, key)
        parts = (protocol, "modified" if section == "modified" else "", *others)
        yield parts, rows.assign(label=labels(rows))


def labels(rows: pd.DataFrame) -> pd.Series:
    """A name for each row: the variant, what was modified, and ``(reference)`` for rows of a reference board.

    If two rows of a task would have the same name, the hardware is added in every panel, and the hash, which holds for
    one task, in that panel alone.
    """
    names = rows["variant"] + rows["modified"].map(_changed)
    names += rows["reference"].map(lambda board: MARK if board else "")
    twice = set(names[_several(rows, names, "hardware")])
    names = names.where(~names.isin(twice), names + " @ " + rows["hardware"])
    return names.where(~_several(rows, names, "hash"), names + " #" + rows["hash"])


def _changed(keys: str) -> str:
    """Which keys of the protocol a user changed, or how many."""
    count = len(keys.split(", ")) if keys else 0
    return f" ({keys if count <= NAMED else f'{count} keys'} changed)" if count else ""


def _several(rows: pd.DataFrame, names: pd.Series, column: str) -> pd.Series:
    return rows.assign(name=names).groupby([*PANEL, "name"], dropna=False)[column].transform("nunique") > 1


def over_seeds(points: pd.DataFrame, by: list[str]) -> pd.DataFrame:
    """One row per group of ``by``: the mean score over ``seeds`` with its 95 % interval, ``low`` to ``high``.

    ``deviation`` is that of the seeds' scores. ``interval`` names what the ends hold: the mean over ``seeds`` (Student)
    where there are two or more, else the score over ``examples`` of the one seed. Other columns keep their first value.
    Shares stay within 0 and 1.
    """
    import numpy as np

    groups = points.sort_values([*by, "seed"]).groupby(by, dropna=False, sort=True)
    rows, spread = groups.first(), groups["score"].agg(["mean", "std", "count"])
    several = spread["count"] > 1
    half = t_quantile(0.975, (spread["count"] - 1).clip(lower=1)) * spread["std"] / np.sqrt(spread["count"])
    share = rows["metric"] == "accuracy"
    low, high = spread["mean"] - half, spread["mean"] + half
    return rows.assign(
        score=spread["mean"],
        deviation=spread["std"],
        low=low.where(~share, low.clip(lower=0)).where(several, rows["low"]),
        high=high.where(~share, high.clip(upper=1)).where(several, rows["high"]),
        seeds=spread["count"],
        interval=several.map({True: "seeds", False: "examples"}),
    ).reset_index()


def looks_of(rows: pd.DataFrame) -> dict[tuple[str, str], Look]:
    """The look of each (model, label) in ``rows``."""
    return looks(rows[["model", "family", "label"]].drop_duplicates().itertuples(index=False, name=None))


def in_order(rows: pd.DataFrame) -> list[tuple[str, str]]:
    """The (model, label) of ``rows`` as legends list them: families together, the reference's first."""
    found = rows[["family", "model", "label"]].drop_duplicates().itertuples(index=False, name=None)
    return [(model, label) for _, model, label in sorted(found, key=lambda each: (family_order(each[0]), *each))]


def panel_title(rows: pd.DataFrame, sheet: pd.DataFrame) -> str:
    """The task; its version where the sheet shows several; that its data is not whole."""
    first = rows.iloc[0]
    version = f" v{first['version']}" if sheet.loc[sheet["task"] == first["task"], "version"].nunique() > 1 else ""
    return f"{first['task']}{version}{' (not the whole data)' if first['data_lacks'] else ''}"


def heading(parts: Sequence[str]) -> str:
    """What stands above a page: the parts of its name."""
    protocol, modified, *others = parts
    said = f"protocol {protocol}{', modified' if modified else ''}", *filter(None, others)
    return " · ".join(re.sub(r"^batch(\d+)$", r"batch \1", part) for part in said)


def extent(rows: pd.DataFrame, *columns: str) -> tuple[float, float]:
    """The least and the greatest known value in columns of which one value is known."""
    import numpy as np

    values = rows[list(columns)].to_numpy(float)
    return float(np.nanmin(values)), float(np.nanmax(values))


def units(metric: str | None) -> tuple[float, str]:
    """The factor by which a score is drawn, and the name of its axis; an arrow says that less is better."""
    return (1.0, "bits per character ↓") if metric == "bits_per_character" else (100.0, "accuracy (%)")
