"""Pair the predictions of two models on the same test examples, seed by seed."""

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
    """Paired differences of two models A and B on M test examples and S shared seeds.

    ``differences`` (S, M) is A minus B, in units of the score summed over the targets of an example; ``scored`` (M,) is
    the number of scored targets of each example. ``only_a`` and ``only_b`` (S,) count the examples that only A or only
    B predicted completely correctly; None if the metric is not accuracy.
    """

    differences: np.ndarray
    scored: np.ndarray
    only_a: np.ndarray | None
    only_b: np.ndarray | None


def pair(a: Mapping[int, Record], b: Mapping[int, Record], seeds: Sequence[int]) -> Pairs | str:
    """Return the paired examples of two variants, given as records by seed, or the reason why they cannot be paired."""
    import numpy as np

    if not seeds:
        return "no seed was run with both variants"
    data = {record.data["fingerprint"] for side in (a, b) for seed in seeds if (record := side[seed]).data}
    if len(data) > 1:
        return "the data differ"
    rows, scored, only_counts = [], None, []
    for seed in seeds:
        first, second = _test_rows(a[seed]), _test_rows(b[seed])
        if first is None or second is None:
            return "predictions were not saved for every seed"
        if len(first) != len(second) or (first["target"].to_numpy() != second["target"].to_numpy()).any():
            return "the test examples differ"
        counts = first["scored"].to_numpy(dtype=np.float64) if "scored" in first else np.ones(len(first))
        if scored is not None and (len(counts) != len(scored) or (counts != scored).any()):
            return "the test examples differ between seeds"
        scored = counts
        if a[seed].metric == "accuracy":
            correct = [table["correct"].to_numpy(dtype=np.float64) for table in (first, second)]
            rows.append(correct[0] - correct[1])
            solved = [each >= counts for each in correct]
            only_counts.append([int((solved[0] & ~solved[1]).sum()), int((solved[1] & ~solved[0]).sum())])
        else:
            rows.append((first["loss"] - second["loss"]).to_numpy(dtype=np.float64) / math.log(2))
    assert scored is not None
    only = np.asarray(only_counts).T if only_counts else (None, None)
    return Pairs(np.asarray(rows), scored, only[0], only[1])


def _test_rows(record: Record) -> pd.DataFrame | None:
    """Return the predictions at the training length, sorted by example; None if there are none.

    The first block of a record's predictions is that of the training length.
    """
    table = tables.predictions(record)
    if table is None or table.empty:
        return None
    blocks = [name for name in ("variant", "knob", "length") if name in table]
    own = table[(table[blocks] == table[blocks].iloc[0]).all(axis=1)]
    return own.sort_values("row")
