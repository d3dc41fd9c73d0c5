"""What curves are called, so that no two in a panel share a name."""

from __future__ import annotations

from typing import TYPE_CHECKING

from lra_bench.records.schema import Record

if TYPE_CHECKING:
    import pandas as pd

NAMED = 2  # of more changed keys than this only the number is told, and the hash where that leaves two alike
IDENTITY = ["model", "variant", "modified", "hash"]


def identity(record: Record) -> dict[str, str]:
    """The columns that tell variants apart: model, variant, modified protocol keys and hash."""
    return {
        "model": record.key.model,
        "variant": record.variant_name,
        "modified": ", ".join(record.protocol_modified),
        "hash": record.key.hash,
    }


def labels(data: pd.DataFrame, panel: list[str]) -> pd.Series:
    """A name for each row: the variant, with modified protocol keys, and the hash where that leaves two alike."""
    names = data["variant"] + data["modified"].map(_changed)
    several = data.assign(name=names).groupby([*panel, "name"], dropna=False)["hash"].transform("nunique") > 1
    return names.where(~several, names + " #" + data["hash"])


def _changed(keys: str) -> str:
    """Which keys of the protocol a user changed, or how many."""
    count = len(keys.split(", ")) if keys else 0
    return f" ({keys if count <= NAMED else f'{count} keys'} changed)" if count else ""
