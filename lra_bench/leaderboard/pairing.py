"""The same test examples under two models, seed by seed."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from lra_bench.records import tables
from lra_bench.records.schema import Record

if TYPE_CHECKING:
    import numpy as np
    import pandas as pd


@dataclass(frozen=True)
class Pairs:
    """A minus B on every test example and shared seed, (S, M), in the score's unit; ``scored`` (M,) targets of each.

    ``only_a`` and ``only_b`` (S,) count the examples that one of the two got wholly right and the other did not; None
    where the score is no count of right answers.
    """

    differences: np.ndarray
    scored: np.ndarray
    only_a: np.ndarray | None
    only_b: np.ndarray | None


def pair(a: Mapping[int, Record], b: Mapping[int, Record], seeds: Sequence[int]) -> Pairs | str:
    """The paired examples of two variants' records by seed, or the reason why they cannot be paired."""
    import numpy as np

    if not seeds:
        return "no seed was run with both"
    data = {record.data["fingerprint"] for side in (a, b) for seed in seeds if (record := side[seed]).data}
    if len(data) > 1:
        return "their data differ"
    rows, scored, rights = [], None, []
    for seed in seeds:
        first, second = _test_rows(a[seed]), _test_rows(b[seed])
        if first is None or second is None:
            return "predictions are not kept for every seed"
        if len(first) != len(second) or (first["target"].to_numpy() != second["target"].to_numpy()).any():
            return "their test examples differ"
        counts = first["scored"].to_numpy(dtype=np.float64) if "scored" in first else np.ones(len(first))
        if scored is not None and (len(counts) != len(scored) or (counts != scored).any()):
            return "their test examples differ between seeds"
        scored = counts
        if a[seed].metric == "accuracy":
            right = [table["correct"].to_numpy(dtype=np.float64) for table in (first, second)]
            rows.append(right[0] - right[1])
            whole = [each >= counts for each in right]
            rights.append([int((whole[0] & ~whole[1]).sum()), int((whole[1] & ~whole[0]).sum())])
        else:
            rows.append((first["loss"] - second["loss"]).to_numpy(dtype=np.float64) / math.log(2))
    assert scored is not None
    only = np.asarray(rights).T if rights else (None, None)
    return Pairs(np.asarray(rows), scored, only[0], only[1])


def _test_rows(record: Record) -> pd.DataFrame | None:
    """Predictions on the whole test split, by row; a record's first block is that of its own length."""
    table = tables.predictions(record)
    if table is None or table.empty:
        return None
    blocks = [name for name in ("variant", "knob", "length") if name in table]
    own = table[(table[blocks] == table[blocks].iloc[0]).all(axis=1)]
    return own.sort_values("row")
