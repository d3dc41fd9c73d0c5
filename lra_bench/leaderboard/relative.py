"""Speed and memory of a variant relative to the transformer on the same machine."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

from .claims import REFERENCE
from .table import TIMED_TOGETHER

if TYPE_CHECKING:
    import pandas as pd

MEMORY = ("train_peak_allocated_bytes", "train_peak_resident_growth_bytes")


def with_relative_costs(board: pd.DataFrame) -> pd.DataFrame:
    """Return the long table with the columns ``relative_speed`` and ``relative_memory`` added.

    They are the training tokens per second and the peak memory of a training step, divided by those of the transformer
    on the same hardware at the same batch size. Each machine is compared at one length; values at other lengths are
    missing.
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
        own, base = (pd.to_numeric(joined[column]).astype("float64") for column in (name, f"{name}_reference"))
        ratios[name] = (own / base.where(base > 0)).where(same)
    found = board.assign(
        relative_speed=ratios["train_tokens_per_second"].to_numpy(),
        relative_memory=ratios[MEMORY[0]].fillna(ratios[MEMORY[1]]).to_numpy(),
    )
    # A mean over tasks must not mix lengths. Each machine uses the length of most rows, the longest if several tie.
    timed_rows = found[found["relative_speed"].notna()]
    counts = timed_rows.groupby(["protocol", "hardware", "speed_length"]).size().reset_index(name="rows")
    chosen = counts.sort_values(["rows", "speed_length"]).drop_duplicates(["protocol", "hardware"], keep="last")
    length = found[["protocol", "hardware"]].merge(chosen, on=["protocol", "hardware"], how="left")["speed_length"]
    at_chosen_length = (found["speed_length"].reset_index(drop=True) == length).fillna(False).astype(bool).to_numpy()
    found.loc[~at_chosen_length, ["relative_speed", "relative_memory"]] = math.nan
    return found
