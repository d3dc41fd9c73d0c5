"""Score over the length that a system is trained and tested at.

Each point is a separate training, tested at its own length. The dashed line is the strongest floor. Points at which no
seed exceeds it are grey.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from lra_bench.records.schema import Record

from .curves import Curves
from .extrapolation import averaged, decorate_lengths, scored_points
from .variants import IDENTITY, PANEL, SHEET, panel_title

if TYPE_CHECKING:
    import pandas as pd
    from matplotlib.axes import Axes

RUN = "run lra-bench bench with two or more lengths, such as task=copy task.length=128,256"
LENGTH_OPTIONS = ("length", "max_length", "window", "context")
"""Task options that set the training length."""


def exclusions(records: Sequence[Record]) -> list[str]:
    """Return for each record the reason why it is not drawn, empty if it is drawn."""
    return ["" if _has_training_length(record) else "without a score at the training length" for record in records]


def table(records: Sequence[Record]) -> pd.DataFrame:
    """Return one row per variant and training length, averaged over seeds, for variants with several lengths.

    Cells whose configurations differ only in the length are one variant. Cells of one system in several tasks are one
    variant with the modified keys that they share, unless a task contains the system twice. ``hash`` identifies the
    variant.
    """
    data = averaged(records)
    # The point at the training length is part of the curve of every length variant.
    data = data[(data["knob"] == "") & (data["ratio"] == 1)].drop_duplicates([*SHEET, *PANEL, *IDENTITY, "length"])
    data = data.drop(columns=["knob", "ratio", "length_variant", "train_length"])
    digests = {(record.key.model, record.key.hash): _digests(record) for record in records}
    found = [digests[pair] for pair in zip(data["model"], data["hash"], strict=True)]
    data["hash"], data["whole"] = [system for system, _ in found], [whole for _, whole in found]
    system = [*SHEET, "variant", "hash", "hardware"]
    is_unique = data.groupby([*PANEL, *system], dropna=False)["whole"].transform("nunique") == 1
    data["modified"] = data["modified"].mask(is_unique, data.groupby(system)["modified"].transform(_shared))
    data["hash"] = data["hash"].where(is_unique, data.pop("whole"))
    several = data.groupby([*SHEET, *PANEL, *IDENTITY], dropna=False)["length"].transform("nunique") > 1
    return data[several].sort_values([*SHEET, *PANEL, *IDENTITY, "length"]).reset_index(drop=True)


def _has_training_length(record: Record) -> bool:
    return any(not knob and point["ratio"] == 1 for _, knob, point in scored_points(record))


def _shared(modified: pd.Series) -> str:
    """Return the keys contained in all of the comma-separated lists."""
    first, *others = (keys.split(", ") for keys in modified.unique())
    return ", ".join(key for key in first if all(key in keys for keys in others))


def _digests(record: Record) -> tuple[str, str]:
    """Return a hash of the system of a cell, and a hash of its configuration without the length and the seed."""
    parts = {name: record.config.get(name) for name in ("model", "position", "backbone", "train", "task")}
    parts["task"] = {key: value for key, value in (parts["task"] or {}).items() if key not in LENGTH_OPTIONS}
    system = {name: parts[name] for name in ("model", "position", "backbone")}
    return _digest(system), _digest(parts)


def _digest(parts: dict[str, Any]) -> str:
    return hashlib.sha256(json.dumps(parts, sort_keys=True, default=str).encode()).hexdigest()[:8]


def _decorate(ax: Axes, rows: pd.DataFrame) -> None:
    decorate_lengths(ax, rows, "length", "training and test length (tokens)")


KIND = Curves(
    panel=PANEL, x="length", y="score", bars=True, aside=0.06, title=panel_title,
    decorate=_decorate, columns=2,
)  # fmt: skip
draw = KIND.draw
