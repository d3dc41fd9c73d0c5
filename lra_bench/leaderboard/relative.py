"""Speed, memory and growth relative to the Transformer, from a profile in which all systems were timed alternately."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING, Any

from lra_bench.records.profiles import ProfileRow, StoredProfile

if TYPE_CHECKING:
    import pandas as pd

COLUMNS = ("relative_speed", "spread_of_relative_speed", "relative_memory", "profile_time_exponent", "profile_length",
           "profile_kernel")  # fmt: skip
"""Columns that ``with_relative_costs`` adds to the long table."""
WITHIN = ["task", "protocol", "hardware"]
"""Columns that the rows of one profile share."""
MODE = "train"


def with_relative_costs(board: pd.DataFrame, profiles: Iterable[StoredProfile]) -> pd.DataFrame:
    """Return the long table with the columns ``COLUMNS``, missing for rows that were not profiled together.

    Of the profiles of a task, protocol and machine, the one that contains the most rows is used, the latest if several
    do. All values are those of training steps at one length: the longest at which the most of these rows were timed.
    """
    import pandas as pd

    known = list(profiles)
    found = pd.DataFrame(None, index=board.index, columns=list(COLUMNS), dtype=object)
    for key, rows in board.groupby(WITHIN, dropna=False):
        fitting = [profile for profile in known if (profile.task, profile.protocol, profile.machine) == key]
        values = _costs(fitting, set(rows["hash"]))
        for place, hash in zip(rows.index, rows["hash"], strict=True):
            if hash in values:
                found.loc[place] = [values[hash][name] for name in COLUMNS]
    numbers = [name for name in COLUMNS if name != "profile_kernel"]
    found[numbers] = found[numbers].apply(pd.to_numeric)
    return board.assign(**{name: found[name] for name in COLUMNS})


def _costs(profiles: Sequence[StoredProfile], hashes: set[str]) -> dict[str, dict[str, Any]]:
    """Return the columns of each row by hash, from the profile that contains the most of ``hashes``."""
    counts = [len(hashes & {row["hash"] for row in profile.rows}) for profile in profiles]
    if not counts or not max(counts):
        return {}
    chosen = max(zip(counts, range(len(counts)), strict=True))[1]
    profile = profiles[chosen]
    rows = [row for row in _first_batch(profile.rows) if row["hash"] in hashes and row["speed_ratio_default"]]
    lengths = Counter(row["length"] for row in rows)
    if not lengths:
        return {}
    length = max(lengths, key=lambda each: (lengths[each], each))
    growth = {
        summary["hash"]: summary["time_exponent"]
        for summary in reversed(profile.summaries)
        if summary["mode"] == MODE and summary["batch_policy"] == rows[0]["batch_policy"]
    }
    return {
        row["hash"]: {
            "relative_speed": row["speed_ratio_default"],
            "spread_of_relative_speed": row["spread_of_speed_ratio_default"],
            "relative_memory": row["memory_ratio_default"],
            "profile_time_exponent": growth.get(row["hash"]),
            "profile_length": length,
            "profile_kernel": row["default_backend"],
        }
        for row in reversed(rows)  # of the Transformer's two kernels, the first row is that of the default one
        if row["length"] == length
    }


def _first_batch(rows: Sequence[ProfileRow]) -> list[ProfileRow]:
    """Return the rows of training steps with the first batch size and policy of the profile."""
    timed = [row for row in rows if row["mode"] == MODE]
    if not timed:
        return []
    policy, size = timed[0]["batch_policy"], timed[0]["batch_size"]
    return [row for row in timed if row["batch_policy"] == policy and (policy != "fixed" or row["batch_size"] == size)]
