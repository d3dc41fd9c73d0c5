"""What a variant costs relative to the transformer on the same machine."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

from .table import REFERENCE, TIMED_TOGETHER

if TYPE_CHECKING:
    import pandas as pd

MEMORY = ("train_peak_allocated_bytes", "train_peak_resident_growth_bytes")


def with_relative_costs(board: pd.DataFrame) -> pd.DataFrame:
    """The long table with ``relative_speed`` and ``relative_memory``, both over the transformer's on the same hardware.

    Training tokens per second and peak memory of a training step, at one length per machine and the same batch size.
    """
    import pandas as pd

    within = [name for name in TIMED_TOGETHER if name != "section"]
    timed = ["train_tokens_per_second", *MEMORY, "train_batch_size"]
    reference = board[(board["variant"] == REFERENCE) & (board["section"] == "ranked")]
    reference = reference.drop_duplicates(within)[[*within, *timed]]
    joined = board[[*within, *timed]].merge(reference, on=within, how="left", suffixes=("", "_reference"))
    same = (joined["train_batch_size"] == joined["train_batch_size_reference"]).fillna(False).astype(bool)
    ratios = {}
    for name in ("train_tokens_per_second", *MEMORY):
        ours, theirs = (pd.to_numeric(joined[column]).astype("float64") for column in (name, f"{name}_reference"))
        ratios[name] = (ours / theirs.where(theirs > 0)).where(same)
    found = board.assign(
        relative_speed=ratios["train_tokens_per_second"].to_numpy(),
        relative_memory=ratios[MEMORY[0]].fillna(ratios[MEMORY[1]]).to_numpy(),
    )
    # A mean over tasks must not mix lengths: on each machine the one that most rows have, the longest of several.
    timed_rows = found[found["relative_speed"].notna()]
    counts = timed_rows.groupby(["protocol", "hardware", "speed_length"]).size().reset_index(name="rows")
    chosen = counts.sort_values(["rows", "speed_length"]).drop_duplicates(["protocol", "hardware"], keep="last")
    length = found[["protocol", "hardware"]].merge(chosen, on=["protocol", "hardware"], how="left")["speed_length"]
    here = (found["speed_length"].reset_index(drop=True) == length).fillna(False).astype(bool).to_numpy()
    found.loc[~here, ["relative_speed", "relative_memory"]] = math.nan
    return found
