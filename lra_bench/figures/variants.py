"""Sheet, panel and label of each record in figures, and averages over seeds."""

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
NAMED = 2  # with more modified keys than this, a label contains their number only
MARK = " (reference)"
CROWDED = 8
"""Maximum number of variants drawn as distinguishable curves in one panel."""


def identity(record: Record) -> dict[str, Any]:
    """Return the columns ``SHEET``, ``PANEL`` and ``IDENTITY`` of a record, and its seed."""
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
    """Return one row per record: the columns of ``identity`` and the leaderboard columns in ``SCORES``."""
    import pandas as pd

    columns = of_runs(SCORES)
    return pd.DataFrame([identity(record) | values(Run(record), columns) for record in records])


def sheets(data: pd.DataFrame, *further: str) -> Iterator[tuple[tuple[str, ...], pd.DataFrame]]:
    """Yield the parts of the name of each sheet (protocol, ``modified``, then ``further``) and its labelled rows."""
    for key, rows in data.groupby([*SHEET, *further], dropna=False):
        protocol, section, *others = map(str, key)
        parts = (protocol, "modified" if section == "modified" else "", *others)
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


def over_seeds(points: pd.DataFrame, by: list[str]) -> pd.DataFrame:
    """Return one row per group of ``by``: the mean score over seeds with its 95 % confidence interval.

    The interval is ``low`` to ``high``, within 0 and 1 for accuracies. ``interval`` is ``seeds`` if it is computed over
    two or more seeds (Student's t), otherwise ``examples``: the interval of the only seed over its examples.
    ``deviation`` is the standard deviation over seeds, ``seeds`` their number. Other columns keep their first value.
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
    protocol, modified, *others = parts
    parts_of_heading = f"protocol {protocol}{', modified' if modified else ''}", *filter(None, others)
    return " · ".join(re.sub(r"^batch(\d+)$", r"batch \1", part) for part in parts_of_heading)


def extent(rows: pd.DataFrame, *columns: str) -> tuple[float, float]:
    """Return the smallest and the largest known value in the columns, at least one of which must be known."""
    import numpy as np

    values = rows[list(columns)].to_numpy(float)
    return float(np.nanmin(values)), float(np.nanmax(values))


def units(metric: str | None) -> tuple[float, str]:
    """Return the factor by which a score is scaled, and its axis label; an arrow means that lower is better."""
    return (1.0, "bits per character ↓") if metric == "bits_per_character" else (100.0, "accuracy (%)")
